//! What a layer launches, operation by operation.

use super::launch::{NormArgs, RotateArgs};
use super::{Buffer, CudaDevice, Layer, running, there};
use crate::base::Result;
use crate::device::speculation::Look;

impl CudaDevice {
    /// `x` is the rows' embeddings.
    pub(super) fn embed(&mut self) -> Result<()> {
        let Self { gpu, embed, room, shape, .. } = self;
        let running = running(&mut self.running)?;
        let sizes = [running.n, shape.hidden as u32];
        self.kernels.embed(gpu, &embed.buffer, running.tokens, there(&room.x)?, sizes)
    }

    /// A norm of all rows: adds what `part` holds to `x`.
    pub(super) fn norm_args(&mut self, weight: u64) -> Result<NormArgs> {
        let running = running(&mut self.running)?;
        Ok(NormArgs {
            x: there(&self.room.x)?.pointer(),
            part: self.room.part.as_ref().map_or(0, Buffer::pointer),
            shift: 0,
            weight,
            rows: 0,
            out: there(&self.room.normed)?.pointer(),
            hidden: self.shape.hidden as u32,
            n: running.n,
            splits: running.owed,
            eps: self.shape.norm_eps,
        })
    }

    fn normed(&mut self, weight: u64) -> Result<()> {
        let args = self.norm_args(weight)?;
        running(&mut self.running)?.owed = 0;
        let rows = args.n;
        self.kernels.norm(&self.gpu, args, rows, self.begin)
    }

    /// The operation `attn_in`.
    pub(super) fn queries(&mut self, layer: usize) -> Result<()> {
        self.normed(self.layers[layer].attn_norm.pointer())?;
        let mut guess = Vec::new();
        if self.watching.is_some() {
            if layer > 0 {
                let n = running(&mut self.running)?.n as usize;
                guess = self.numbers(there(&self.room.guess)?, n * self.shape.heads * self.shape.head_size)?;
            }
            if layer + 1 < self.layers.len() {
                self.guess(layer + 1)?;
            }
        }
        self.look_ahead(layer + 1, Look::Ahead)?;
        // The first of its layers was prepared when the step began.
        if let Some(heavy) = self.heavy.as_ref().filter(|heavy| heavy.selects(layer)) {
            heavy.prepare(&self.gpu, &mut self.store, layer + 1)?;
        }
        let Self { gpu, layers, products, room, shape, store, selecting, .. } = self;
        let running = running(&mut self.running)?;
        let Layer { qkv, .. } = &layers[layer];
        let part = there(&room.part)?;
        let splits = products.partial(gpu, qkv, there(&room.normed)?, running.n, false, part)?;
        let target = store.target(gpu, layer, running.slots)?;
        running.target = target;
        let args = RotateArgs {
            part: part.pointer(),
            frequencies: self.frequencies.pointer(),
            positions: running.positions,
            slots: target.slots,
            q: there(&room.q)?.pointer(),
            kv: target.kv,
            n: running.n,
            splits,
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_size: shape.head_size as u32,
        };
        self.kernels.rotate(gpu, args, store.begin_writing(self.begin))?;
        let (slots, rows) = (running.slots, running.n as usize);
        // A layer that chooses for itself does so in a moment, and what is dropped for new tokens must be gone by then.
        let now = selecting.as_ref().is_some_and(|selecting| selecting.look(layer) == Some(Look::Same));
        store.written(gpu, layer, target, |beside| {
            let selecting = selecting.as_ref().filter(|_| !now);
            selecting.map_or(Ok(()), |selecting| selecting.put(beside, layer, target, slots, rows))
        })?;
        if let Some(selecting) = selecting.as_mut().filter(|_| now) {
            selecting.put(gpu, layer, target, slots, rows)?;
            selecting.choose(gpu, store, layer, there(&room.q)?.pointer())?;
        }
        if self.watching.is_some() { self.tell(layer, &guess) } else { Ok(()) }
    }

    /// The operation `attend`.
    pub(super) fn attention(&mut self, layer: usize) -> Result<()> {
        let Self { gpu, layers, room, store, selecting, heavy, .. } = self;
        let running = running(&mut self.running)?;
        let marks = if gpu.captures() { &self.graphs.marks } else { &self.marks[self.turn].attention };
        let marks = (layer == layers.len() / 2).then_some(marks);
        if let Some([before, _]) = marks {
            gpu.set_mark(before)?;
        }
        let (q, o) = (there(&room.q)?, there(&room.o)?);
        let selecting = selecting.as_mut().filter(|selecting| selecting.selects(layer));
        let heavy = heavy.as_mut().filter(|heavy| heavy.selects(layer));
        let all = selecting.as_ref().and_then(|selecting| selecting.selects_from());
        if all.or(heavy.as_ref().and_then(|heavy| heavy.selects_from())).is_none() {
            let begin = self.attention.earliest(&running.plan);
            self.attention.launch(gpu, &running.plan, q, store.view(layer), o, begin)?;
        }
        if let Some(selecting) = selecting {
            selecting.attend(gpu, store, layer, [q.pointer(), o.pointer()], running.target)?;
        }
        if let Some(heavy) = heavy {
            heavy.attend(gpu, store, layer, [q.pointer(), o.pointer()], running.target)?;
        }
        marks.map_or(Ok(()), |[_, after]| gpu.set_mark(after))?;
        store.read(gpu, layer)
    }

    /// The operation `attn_out`.
    pub(super) fn output(&mut self, layer: usize) -> Result<()> {
        let Self { gpu, layers, products, room, .. } = self;
        let running = running(&mut self.running)?;
        let part = there(&room.part)?;
        running.owed = products.partial(gpu, &layers[layer].o, there(&room.o)?, running.n, false, part)?;
        Ok(())
    }

    /// The operation `mlp`.
    pub(super) fn feed_forward(&mut self, layer: usize) -> Result<()> {
        self.normed(self.layers[layer].mlp_norm.pointer())?;
        self.look_ahead(layer + 1, Look::Half)?;
        let Self { gpu, layers, products, room, shape, .. } = self;
        let running = running(&mut self.running)?;
        let Layer { gate_up, down, .. } = &layers[layer];
        let (normed, gated, part) = (there(&room.normed)?, there(&room.gated)?, there(&room.part)?);
        if products.by_blas(running.n) {
            products.partial(gpu, gate_up, normed, running.n, true, part)?;
            self.kernels.gate(gpu, part, gated, [running.n, shape.feed_forward as u32], self.begin)?;
        } else {
            products.gated(gpu, gate_up, normed, running.n, gated)?;
        }
        running.owed = products.partial(gpu, down, gated, running.n, false, part)?;
        Ok(())
    }
}
