//! The skew of a model: read from beside its weights, or made from the sample text and written there.

use super::EngineOptions;
use crate::attention::{Method, Planner, QueryRow};
use crate::base::{Error, Result};
use crate::device::speculation::{Seen, Watched, Watching};
use crate::device::{Shape, Step};
use crate::kv::{PAGE_TOKENS, TokenTree};
use crate::model::Model;
use crate::model::tokenizer::Special;
use crate::offload::skew::file::{self, Origin};
use crate::offload::skew::{LayerSkew, Sampled, Skew};
use rayon::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens of the sample that are read.
const SAMPLE_TOKENS: usize = 1024;

/// Rows of a step that reads the sample.
const SAMPLE_ROWS: usize = 256;

/// The sample text in a model's tokens, and where its skew is kept.
#[derive(Debug, Clone)]
pub struct Sample {
    ids: Vec<u32>,
    /// `None` for a made-up model.
    at: Option<PathBuf>,
    origin: Origin,
}

impl Sample {
    /// For a model that is to run with these options; `None` where no skew is needed.
    pub fn of(model: &Model, options: &EngineOptions) -> Result<Option<Self>> {
        if !options.offload.method.speculates() {
            return Ok(None);
        }
        let mut ids: Vec<u32> = model.tokenizer.bos().into_iter().collect();
        ids.extend(model.tokenizer.encode(include_str!("../../offload/sample.txt"), Special::Text));
        ids.truncate(SAMPLE_TOKENS.min(options.context.unwrap_or(model.weights.shape.context)));
        if model.tokenizer.vocab_len() == 0 {
            return Err(Error::input("this model has no tokenizer, which reading the sample text needs"));
        }
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let how = format!("{:?} {:?}", options.activations, options.kv);
        let origin = Origin {
            model: model.checksum()?.unwrap_or_default(),
            sample: file::digest(&[&bytes, how.as_bytes()].concat()),
        };
        let at = model.files.first().map(|file| {
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            file.with_file_name(format!("{name}.skew"))
        });
        Ok(Some(Self { ids, at, origin }))
    }

    /// For a card: it may have the numbers of a head in another order, so that its skew is its own.
    pub fn for_card(&self) -> Self {
        let at = self.at.as_ref().map(|at| at.with_extension("card.skew"));
        let origin =
            Origin { sample: file::digest(format!("card {}", self.origin.sample).as_bytes()), ..self.origin.clone() };
        Self { ids: self.ids.clone(), at, origin }
    }

    /// The skew from beside the model where it is whole, else made on `device` and written there if that can be done.
    pub fn skew(&self, device: &mut dyn Watched, shape: &Shape) -> Result<Skew> {
        if let Some(skew) = self.at.as_ref().and_then(|at| file::read(at, &self.origin))
            && (skew.layers.len(), skew.hidden) == (shape.layers, shape.hidden)
            && (skew.kv_heads, skew.head_size) == (shape.kv_heads, shape.head_size)
        {
            return Ok(skew);
        }
        let skew = self.make(device, shape)?;
        if let Some(at) = &self.at {
            // A folder that cannot be written to costs the next start the same seconds again.
            let _ = file::write(at, &self.origin, &skew);
        }
        Ok(skew)
    }

    /// Reads the sample twice: for what each layer adds to its input in the mean, and for what is guessed with that.
    fn make(&self, device: &mut dyn Watched, shape: &Shape) -> Result<Skew> {
        let ids = &self.ids[..self.ids.len().min(device.pages() * PAGE_TOKENS)];
        let hidden = shape.hidden;
        let sums = vec![vec![0f64; hidden]; shape.layers];
        let sums = watch(device, (shape.layers, ids), sums, Vec::new(), move |sums, seen| {
            for row in seen.x.chunks_exact(hidden) {
                sums[seen.layer].iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
        })?;
        let added = |layer: usize| -> Vec<f32> {
            let before = &sums[layer.saturating_sub(1)];
            sums[layer].iter().zip(before).map(|(sum, before)| ((sum - before) / ids.len() as f64) as f32).collect()
        };
        let shifts: Vec<Vec<f32>> = (0..shape.layers).map(added).collect();
        let kept = vec![Kept::default(); shape.layers];
        let kept = watch(device, (shape.layers, ids), kept, shifts.clone(), |kept, seen| {
            let kept = &mut kept[seen.layer];
            kept.q.extend_from_slice(seen.q);
            kept.guess.extend_from_slice(seen.guess);
            kept.k.extend_from_slice(seen.k);
        })?;
        let layer = |(kept, shift): (&Kept, &Vec<f32>)| {
            LayerSkew::of(&Sampled {
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                head_size: shape.head_size,
                q: &kept.q,
                guess: &kept.guess,
                k: &kept.k,
                shift,
            })
        };
        let layers = kept.par_iter().zip(&shifts).map(layer).collect::<Result<_>>()?;
        Ok(Skew { hidden: shape.hidden, kv_heads: shape.kv_heads, head_size: shape.head_size, layers })
    }
}

/// Reads tokens while `tell` gathers what the layers see.
fn watch<T: Send + 'static>(
    device: &mut dyn Watched,
    (layers, ids): (usize, &[u32]),
    gathered: T,
    shifts: Vec<Vec<f32>>,
    tell: impl Fn(&mut T, &Seen<'_>) + Send + 'static,
) -> Result<T> {
    let gathered = Arc::new(Mutex::new(gathered));
    let told = Arc::clone(&gathered);
    let watcher = Box::new(move |seen: &Seen<'_>| tell(&mut told.lock().unwrap_or_else(PoisonError::into_inner), seen));
    device.watch(Some(Watching { watcher, shifts }))?;
    let read = read(device, layers, ids);
    device.watch(None)?;
    read?;
    // The watcher is gone with its share.
    let gathered = Arc::into_inner(gathered).ok_or_else(|| Error::fault("a watcher outlived its watch"))?;
    Ok(gathered.into_inner().unwrap_or_else(PoisonError::into_inner))
}

#[derive(Clone, Default)]
struct Kept {
    q: Vec<f32>,
    guess: Vec<f32>,
    k: Vec<f32>,
}

/// Forwards tokens without wanting logits.
fn read(device: &mut dyn Watched, layers: usize, ids: &[u32]) -> Result<()> {
    let mut tree = TokenTree::new(device.pages());
    let branch = tree.open();
    let mut planner = Planner::new(Method::default());
    for tokens in ids.chunks(SAMPLE_ROWS) {
        let (first, mut slots) = (tree.len(branch) as u32, Vec::new());
        tree.append(branch, tokens, &mut slots).map_err(|e| Error::limit(format!("{e}: raise --ram-budget")))?;
        let positions: Vec<u32> = (first..first + tokens.len() as u32).collect();
        let rows: Vec<QueryRow> = positions.iter().map(|&position| QueryRow { branch, position }).collect();
        let work = planner.plan(&tree, &rows);
        device.begin(&Step { tokens, positions: &positions, slots: &slots, work, selects: &[] })?;
        for layer in 0..layers {
            device.attn_in(layer)?;
            device.attend(layer, work)?;
            device.attn_out(layer)?;
            device.mlp(layer)?;
        }
    }
    device.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RopeLayout;
    use crate::device::cpu::arena::KvNumber;
    use crate::device::cpu::simd::Simd;
    use crate::device::cpu::{Activations, CpuDevice, CpuOptions};
    use crate::model::reference::{random_weights, small_shape};
    use candle_core::quantized::GgmlDType;

    #[test]
    fn a_guess_with_what_the_layer_before_adds_is_the_layers_own_query() {
        let shape = small_shape(RopeLayout::Halves);
        let weights = random_weights(&shape, &[GgmlDType::F32], true, 9);
        let options =
            CpuOptions { threads: 1, activations: Activations::F32, pages: 2, kv: KvNumber::F32, simd: Simd::best() };
        let mut device = CpuDevice::new(weights, options).unwrap();
        type Layers = Vec<[Vec<f32>; 3]>;
        let mut see = |shifts: Vec<Vec<f32>>| -> Layers {
            let tell = |layers: &mut Layers, seen: &Seen<'_>| {
                layers.push([seen.x, seen.q, seen.guess].map(<[f32]>::to_vec));
            };
            watch(&mut device, (shape.layers, &[5]), Vec::new(), shifts, tell).unwrap()
        };
        // Of a single token the mean is its own.
        let plain = see(Vec::new());
        let added = |layer: usize| -> Vec<f32> {
            plain[layer][0].iter().zip(&plain[layer.saturating_sub(1)][0]).map(|(x, before)| x - before).collect()
        };
        let guessed = see((0..shape.layers).map(added).collect());
        for layer in 1..shape.layers {
            let far =
                |guess: &[f32]| plain[layer][1].iter().zip(guess).fold(0f32, |far, (q, g)| far.max((q - g).abs()));
            let (with, without) = (far(&guessed[layer][2]), far(&plain[layer][2]));
            assert!(with <= 1e-3 && without > 0.1, "layer {layer}: {with} with, {without} without");
        }
    }
}
