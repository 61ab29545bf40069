//! Queries of a layer guessed before it, and what a watcher is told of every layer.

use super::launch::RotateArgs;
use super::{Buffer, CudaDevice, Number, running, there};
use crate::base::Result;
use crate::device::speculation::{Look, Seen, Watched, Watching};
use crate::kv::PAGE_TOKENS;
use half::{bf16, f16};

impl CudaDevice {
    /// Guesses the queries of a layer from `x` as it is now, which lacks nothing.
    pub(super) fn guess(&mut self, layer: usize) -> Result<()> {
        let n = running(&mut self.running)?.n;
        let width = self.shape.heads * self.shape.head_size;
        self.gpu.grow(&mut self.room.guess_normed, n as usize * self.shape.hidden * 2)?;
        self.gpu.grow(&mut self.room.guess, n as usize * width * 2)?;
        let mut norm = self.norm_args(self.layers[layer].attn_norm.pointer())?;
        (norm.out, norm.splits) = (there(&self.room.guess_normed)?.pointer(), 0);
        norm.shift = match &self.watching {
            Some((_, shifts)) => shifts.get(layer).map_or(0, Buffer::pointer),
            None => self.selecting.as_ref().map_or(0, |selecting| selecting.shift(layer)),
        };
        self.kernels.norm(&self.gpu, norm, n, self.begin)?;
        let Self { gpu, layers, products, room, shape, .. } = self;
        let (query, part) = (&layers[layer].query, there(&room.part)?);
        let splits = products.partial(gpu, query, there(&room.guess_normed)?, n, false, part)?;
        let running = running(&mut self.running)?;
        let args = RotateArgs {
            part: part.pointer(),
            frequencies: self.frequencies.pointer(),
            positions: running.positions,
            slots: running.slots,
            q: there(&room.guess)?.pointer(),
            kv: 0,
            n,
            splits,
            heads: shape.heads as u32,
            // Queries alone are turned, so that nothing is written at the slots.
            kv_heads: 0,
            head_size: shape.head_size as u32,
        };
        self.kernels.rotate(gpu, args, self.begin)
    }

    /// Guesses the queries of a layer, where its rows are chosen by them at this time, and chooses.
    pub(super) fn look_ahead(&mut self, layer: usize, look: Look) -> Result<()> {
        if self.selecting.as_ref().and_then(|s| s.look(layer)) != Some(look) {
            return Ok(());
        }
        self.guess(layer)?;
        let Self { gpu, selecting, store, room, .. } = self;
        let q = there(&room.guess)?.pointer();
        selecting.as_mut().map_or(Ok(()), |selecting| selecting.choose(gpu, store, layer, q))
    }

    /// Numbers of the first rows of a buffer, widened.
    pub(super) fn numbers(&self, buffer: &Buffer, count: usize) -> Result<Vec<f32>> {
        Ok(widen(self.number, &self.gpu.download(buffer, count)?))
    }

    /// Tells a watcher what the layer sees.
    pub(super) fn tell(&mut self, layer: usize, guess: &[f32]) -> Result<()> {
        let n = running(&mut self.running)?.n as usize;
        let (d, kv_heads) = (self.shape.head_size, self.shape.kv_heads);
        let q = self.numbers(there(&self.room.q)?, n * self.shape.heads * d)?;
        let pages = self.store.download(&self.gpu, layer, self.watched_pages)?;
        let mut keys = Vec::with_capacity(n * kv_heads * d);
        for &slot in &self.watched_slots {
            for head in 0..kv_heads {
                let (page, offset) = (slot as usize / PAGE_TOKENS, slot as usize % PAGE_TOKENS);
                let at = ((page * kv_heads + head) * 2 * PAGE_TOKENS + offset) * d;
                keys.extend_from_slice(&pages[at..at + d]);
            }
        }
        let k = widen(self.number, &keys);
        let x: Vec<f32> = self.gpu.download(there(&self.room.x)?, n * self.shape.hidden)?;
        if let Some((watcher, _)) = &mut self.watching {
            watcher(&Seen { layer, x: &x, q: &q, guess, k: &k });
        }
        Ok(())
    }
}

impl Watched for CudaDevice {
    fn watch(&mut self, watching: Option<Watching>) -> Result<()> {
        let upload = |Watching { watcher, shifts }| -> Result<_> {
            let shifts: &Vec<Vec<f32>> = &shifts;
            Ok((watcher, shifts.iter().map(|shift| self.gpu.upload(shift)).collect::<Result<_>>()?))
        };
        self.watching = watching.map(upload).transpose()?;
        Ok(())
    }
}

/// 16-bit numbers of the card as they are on the host.
fn widen(number: Number, bits: &[u16]) -> Vec<f32> {
    match number {
        Number::F16 => bits.iter().map(|&b| f16::from_bits(b).to_f32()).collect(),
        Number::Bf16 => bits.iter().map(|&b| bf16::from_bits(b).to_f32()).collect(),
    }
}
