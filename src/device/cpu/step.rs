//! The operations of a step on the CPU, and the guess at the next layer's queries beside them.

use super::hot::{self, Hot};
use super::ops::{Epilogue, Ops, Projection, Wants, lock};
use super::product::weight_row;
use super::selecting::Layer as LayerAt;
use super::shared::Shared;
use super::{CpuDevice, Layer, State, head, input, partial};
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::attend::AttendWork;
use crate::device::check::{check_head, check_step};
use crate::device::head::{HeadRow, Said};
use crate::device::speculation::{Fetch, Look, Seen, Watched, Watching};
use crate::device::tiers::Link;
use crate::device::{Device, Step, Times};
use crate::kv::{PageId, Slot};
use std::time::Instant;

impl Device for CpuDevice {
    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!("cpu {}, {threads} thread{}", self.options.simd, if threads == 1 { "" } else { "s" })
    }

    fn page_bytes(&self) -> usize {
        self.arena.page_bytes()
    }

    fn attend_threads(&self) -> usize {
        self.pool.threads()
    }

    fn partial_token_bytes(&self, columns: usize) -> usize {
        partial::token_bytes(columns)
    }

    /// A copy in line passes behind nothing, so that guessing earlier gains nothing, and is worse.
    fn usual_look(&self) -> Look {
        Look::Half
    }

    fn pages(&self) -> usize {
        self.arena.pages()
    }

    fn begin(&mut self, step: &Step<'_>) -> Result<()> {
        let start = Instant::now();
        let (n, h) = (step.tokens.len(), self.shape.hidden);
        let state = &mut self.state;
        check_step(step, &self.shape, self.arena.pages(), &mut state.sorted)?;
        state.positions.clear();
        state.positions.extend_from_slice(step.positions);
        state.slots.clear();
        state.slots.extend_from_slice(step.slots);
        if let Some(hot) = &mut self.hot {
            hot.begin(step.work, step.selects, &self.arena);
        }
        if let Some(&last) = step.positions.iter().max() {
            self.rope.reach(last);
        }
        input::grow(&mut state.x, n * h);
        let (embed, workers, simd, x) = (&self.embed, &self.workers, self.options.simd, Shared::new(&mut state.x));
        self.pool.run(n.div_ceil(8), &|task, worker| {
            let mut worker = lock(&workers[worker]);
            for row in task * 8..(task * 8 + 8).min(n) {
                // SAFETY: each row is one task's.
                let x = unsafe { x.slice(row * h..(row + 1) * h) };
                weight_row(simd, embed, step.tokens[row] as usize, &mut worker.scratch, x);
            }
        });
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn attn_in(&mut self, layer: usize) -> Result<()> {
        let start = Instant::now();
        std::mem::swap(&mut self.state.guess, &mut self.state.guessed);
        if self.look(layer + 1) == Look::Ahead {
            self.guess(layer + 1);
        }
        let Self { shape, options, layers, arena, hot, watching, rope, pool, workers, state, .. } = self;
        let (n, h) = (state.positions.len(), shape.hidden);
        let (width, kv_width) = (shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
        let Layer { attn_norm, wq, wk, wv, .. } = &layers[layer];
        let State { x, q, k, v, rows, positions, slots, .. } = state;
        let mut ops = Ops { simd: options.simd, pool, workers };
        rows.shape(n, h, Wants::of(options.activations, &[wq, wk, wv]));
        ops.norm(x, |row| row, Some((attn_norm, shape.norm_eps)), rows);
        input::grow(q, n * width);
        input::grow(k, n * kv_width);
        input::grow(v, n * kv_width);
        let projections = [
            Projection { weight: wq, out: &mut q[..] },
            Projection { weight: wk, out: &mut k[..] },
            Projection { weight: wv, out: &mut v[..] },
        ];
        ops.project(rows, projections, Epilogue::Store);
        let (turned, keys, writer) = (Shared::new(q), Shared::new(k), arena.writer(layer));
        pool.run(n.div_ceil(8), &|task, _| {
            for row in task * 8..(task * 8 + 8).min(n) {
                // SAFETY: each row, and each slot (`begin` refuses doubles), is one task's.
                unsafe {
                    rope.turn(turned.slice(row * width..(row + 1) * width), positions[row]);
                    let k = keys.slice(row * kv_width..(row + 1) * kv_width);
                    rope.turn(k, positions[row]);
                    writer.put(slots[row], k, &v[row * kv_width..(row + 1) * kv_width]);
                }
            }
        });
        let State { q, k, guess, slots, .. } = state;
        if let Some(watching) = watching {
            let guess = if layer == 0 { &[] } else { &guess[..n * width] };
            (watching.watcher)(&Seen { layer, x: &x[..n * h], q: &q[..n * width], guess, k: &k[..n * kv_width] });
        }
        if let Some(hot) = hot {
            let parallel = |tasks: usize, f: &(dyn Fn(usize) + Sync)| pool.run(tasks, &|task, _| f(task));
            hot.written(layer, slots, &k[..n * kv_width], arena, &parallel);
        }
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn attend(&mut self, layer: usize, work: &AttendWork) -> Result<()> {
        let start = Instant::now();
        let Self { shape, arena, hot, attention, pool, state, .. } = self;
        let numbers = state.positions.len() * shape.heads * shape.head_size;
        input::grow(&mut state.o, numbers);
        let parallel = |tasks: usize, f: &(dyn Fn(usize) + Sync)| pool.run(tasks, &|task, _| f(task));
        let (q, o) = (&state.q[..numbers], &mut state.o[..numbers]);
        match hot {
            Some(hot) => {
                let layer = LayerAt { layer, work, cold: arena.layer(layer), q, guess: &state.guess };
                hot.attend(&layer, arena, attention, o, &parallel);
            }
            None => attention.run(work, arena.layer(layer), q, o, &parallel),
        }
        self.times.attention += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn attn_out(&mut self, layer: usize) -> Result<()> {
        let start = Instant::now();
        let Self { shape, options, layers, pool, workers, state, .. } = self;
        let wo = &layers[layer].wo;
        let State { x, o, rows, positions, .. } = state;
        let mut ops = Ops { simd: options.simd, pool, workers };
        rows.shape(positions.len(), shape.heads * shape.head_size, Wants::of(options.activations, &[wo]));
        ops.norm(o, |row| row, None, rows);
        ops.project(rows, [Projection { weight: wo, out: x }], Epilogue::Add);
        if self.look(layer + 1) == Look::Half {
            self.guess(layer + 1);
        }
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn mlp(&mut self, layer: usize) -> Result<()> {
        let start = Instant::now();
        let Self { shape, options, layers, pool, workers, state, .. } = self;
        let Layer { mlp_norm, gate, up, down, .. } = &layers[layer];
        let State { x, rows, gated, positions, .. } = state;
        let mut ops = Ops { simd: options.simd, pool, workers };
        rows.shape(positions.len(), shape.hidden, Wants::of(options.activations, &[gate, up]));
        ops.norm(x, |row| row, Some((mlp_norm, shape.norm_eps)), rows);
        gated.shape(positions.len(), shape.feed_forward, Wants::of(options.activations, &[down]));
        ops.gated(rows, gate, up, gated);
        ops.project(gated, [Projection { weight: down, out: x }], Epilogue::Add);
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn head(&mut self, wanted: &[HeadRow<'_>], out: &mut Vec<Said>) -> Result<()> {
        let start = Instant::now();
        let Self { shape, options, norm, output, embed, pool, workers, state, .. } = self;
        check_head(wanted, state.positions.len(), shape.vocab)?;
        let weight = output.as_ref().unwrap_or(embed);
        let rows = &mut state.rows;
        rows.shape(wanted.len(), shape.hidden, Wants::of(options.activations, &[weight]));
        let mut ops = Ops { simd: options.simd, pool, workers };
        ops.norm(&state.x, |i| wanted[i].row, Some((norm, shape.norm_eps)), rows);
        head::logits(&mut ops, weight, rows, wanted, out);
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn times(&self) -> Times {
        self.times
    }

    fn link(&self) -> Option<Link> {
        self.hot.as_ref().map(Hot::link)
    }

    fn here(&self) -> Option<Vec<f32>> {
        self.hot.as_ref().map(Hot::here)
    }

    fn moving(&self) -> Option<Vec<f32>> {
        self.hot.as_ref().map(Hot::moving)
    }

    fn refetch(&mut self, tier: Option<(u64, Fetch)>, slots: &[Slot]) -> Result<()> {
        self.hot = None;
        if let Some((bytes, fetch)) = tier {
            let least = hot::least_bytes(&fetch, self.arena.pages(), &self.shape, self.options.kv.bytes());
            if bytes < least {
                let (bytes, least) = (Human(bytes), Human(least));
                return Err(Error::limit(format!(
                    "a device tier of {bytes} cannot hold the {least} that must be there; raise --kv-budget (--budget of \
                     `bench offload`), or lower --offload-ratio"
                )));
            }
            self.offload(bytes, fetch)?;
        }
        let Self { hot, arena, pool, .. } = self;
        let parallel = |tasks: usize, f: &(dyn Fn(usize) + Sync)| pool.run(tasks, &|task, _| f(task));
        if let Some(hot) = hot {
            hot.adopt(slots, arena, &parallel);
        }
        Ok(())
    }

    fn freed(&mut self, pages: &[PageId]) {
        if let Some(hot) = &mut self.hot {
            hot.freed(pages);
        }
    }

    fn expect(&mut self, soon: &[PageId], later: &[PageId]) {
        if let Some(hot) = &mut self.hot {
            hot.expect(soon, later, &self.arena);
        }
    }
}

impl Watched for CpuDevice {
    fn watch(&mut self, watching: Option<Watching>) -> Result<()> {
        self.watching = watching;
        Ok(())
    }
}

impl CpuDevice {
    /// When the queries of `layer` are to be guessed.
    fn look(&self, layer: usize) -> Look {
        let wanted = self.hot.as_ref().map_or(Look::Same, |hot| hot.look(layer));
        if self.watching.is_some() && wanted == Look::Same { Look::Ahead } else { wanted }
    }

    /// Guesses the queries of `layer` from `x` as it is now.
    fn guess(&mut self, layer: usize) {
        let Self { shape, options, layers, hot, watching, rope, pool, workers, state, .. } = self;
        let shift = match watching {
            Some(watching) => watching.shifts.get(layer).map_or(&[][..], |shift| shift),
            None => hot.as_ref().map_or(&[][..], |hot| hot.shift(layer)),
        };
        let n = state.positions.len();
        let width = shape.heads * shape.head_size;
        let Some(Layer { attn_norm, wq, .. }) = layers.get(layer) else { return };
        let State { x, shifted, guessed, rows, positions, .. } = state;
        if !shift.is_empty() {
            shifted.clear();
            shifted.extend(x[..n * shape.hidden].iter().zip(shift.iter().cycle()).map(|(x, shift)| x + shift));
        }
        let x = if shift.is_empty() { x } else { shifted };
        let mut ops = Ops { simd: options.simd, pool, workers };
        rows.shape(n, shape.hidden, Wants::of(options.activations, &[wq]));
        ops.norm(x, |row| row, Some((attn_norm, shape.norm_eps)), rows);
        input::grow(guessed, n * width);
        ops.project(rows, [Projection { weight: wq, out: &mut guessed[..] }], Epilogue::Store);
        let q = Shared::new(guessed);
        pool.run(n.div_ceil(8), &|task, _| {
            for (row, &position) in positions.iter().enumerate().skip(task * 8).take(8) {
                // SAFETY: each row is one task's.
                rope.turn(unsafe { q.slice(row * width..(row + 1) * width) }, position);
            }
        });
    }
}
