//! Steps that are captured and replayed against the same steps launched one kernel at a time.

use super::{NUMBERS, Planning, small};
use crate::base::Result;
use crate::base::rng::stream;
use crate::device::attend::AttendWork;
use crate::device::cuda::driver::Gpu;
use crate::device::cuda::step::{CudaDevice, CudaOptions};
use crate::device::head::{HeadRow, Said};
use crate::device::selftest::Row;
use crate::device::{Device, RopeLayout, Step};
use crate::kv::Slot;
use rand::Rng;

const LAYERS: usize = 3;

/// A step of a tree that grows, forks and is pruned.
pub struct Grown {
    pub work: AttendWork,
    /// Of each batch row.
    pub positions: Vec<u32>,
    pub slots: Vec<Slot>,
}

/// Logits of all rows and all K/V, bit for bit, over all steps. `fault`: the replaying device reads another token.
pub fn run(ordinal: usize, planning: impl Fn() -> Planning, trees: &[Vec<Grown>], fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (_, kind, name, _) in NUMBERS {
        let weights = small(kind, RopeLayout::Interleaved, LAYERS)?;
        let vocab = weights.shape.vocab as u32;
        let slots = trees.iter().flatten().flat_map(|step| &step.slots);
        let pages = slots.map(|slot| slot.page.0 as usize + 1).max().unwrap_or(1);
        let card = |graphs: bool| {
            let options = CudaOptions { pages, rows: 300, planning: planning(), tier: None, graphs };
            CudaDevice::new(Gpu::open(ordinal)?, weights.clone(), options)
        };
        let (mut launching, mut replaying) = (card(false)?, card(true)?);
        for (case, steps) in trees.iter().enumerate() {
            let mut random = stream(15, "cuda selftest", &[case as u64]);
            let (mut wrong, before) = (0, replaying.replays());
            for (at, step) in steps.iter().enumerate() {
                let mut tokens: Vec<u32> = step.positions.iter().map(|_| random.random_range(0..vocab)).collect();
                let expected = logits(&mut launching, step, &tokens)?;
                if fault && at + 1 == steps.len() {
                    tokens[0] ^= 1;
                }
                wrong += usize::from(logits(&mut replaying, step, &tokens)? != expected);
            }
            wrong += usize::from(replaying.kv()? != launching.kv()?);
            let replays = replaying.replays() - before;
            table.push(Row {
                kernel: format!("cuda graphs {name}"),
                shape: format!("{} steps, {replays} replayed", steps.len()),
                max_error: wrong as f64,
                ok: wrong == 0 && replays > 0 && launching.replays() == 0,
            });
        }
    }
    Ok(table)
}

/// The bits of all logits of a step's last rows.
fn logits(device: &mut CudaDevice, step: &Grown, tokens: &[u32]) -> Result<Vec<Vec<u32>>> {
    let Grown { work, positions, slots } = step;
    device.begin(&Step { tokens, positions, slots, work, selects: &[] })?;
    for layer in 0..LAYERS {
        device.attn_in(layer)?;
        device.attend(layer, work)?;
        device.attn_out(layer)?;
        device.mlp(layer)?;
    }
    let wanted: Vec<HeadRow<'_>> = (tokens.len().saturating_sub(24)..tokens.len()).map(HeadRow::all).collect();
    let mut out = Vec::new();
    device.head(&wanted, &mut out)?;
    Ok(out.iter().filter_map(Said::logits).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect())
}
