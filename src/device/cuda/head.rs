//! Logits on the card: products of the wanted rows, and what is told of them (`kernels/head.cu`). They stay where they are
//! until the next step, in case one must be fetched after all.

use super::driver::{Begin, Buffer, Function, Gpu, Launch, Module, Pinned};
use super::ptx;
use super::staging::Staging;
use crate::base::{Error, Result};
use crate::device::head::{Glance, HeadRow, Said, TOP, Want};
use std::ffi::c_void;

/// Logits of one block of `glance_chunk`, and its threads.
const CHUNK: usize = 8192;
const CHUNK_THREADS: u32 = 512;
/// Chunks that `glance_row` looks at; a larger vocabulary is brought to the host.
const MOST_CHUNKS: usize = 32;
/// Numbers of 8 bytes that tell of a row.
const TOLD: usize = 2 + TOP;
/// Rows whose logits come to the host in one copy.
const BROUGHT: usize = 64;

/// `Glance` of the kernels.
#[repr(C)]
struct Args {
    logits: u64,
    cold: u64,
    best: u64,
    sums: u64,
    out: u64,
    vocab: u32,
    chunks: u32,
}

/// The kernels, and room for what they tell.
pub struct Head {
    vocab: usize,
    chunk: Function,
    row: Function,
    asked: Function,
    _module: Module,
    staging: Staging,
    /// `[rows][vocab]`, float32.
    logits: Option<Buffer>,
    best: Option<Buffer>,
    sums: Option<Buffer>,
    told: Option<Buffer>,
    pinned: Option<Pinned>,
    /// Rows that `logits` holds.
    rows: usize,
}

/// Where what is asked lies on the card.
struct Question {
    cold: u64,
    asked_rows: u64,
    asked_tokens: u64,
    asked: usize,
}

/// Bytes that [`Head`] needs for steps of so many rows.
pub fn work_bytes(vocab: usize, rows: usize) -> usize {
    rows * (vocab * 4 + vocab.div_ceil(CHUNK) * (TOP * 8 + 16) + TOLD * 8)
}

/// A number of the kernels' order as token and logit; `None`: nothing.
fn token_and_logit(place: u64) -> Option<(u32, f32)> {
    let key = (place >> 32) as u32;
    let bits = if key & 0x8000_0000 == 0 { !key } else { key & 0x7fff_ffff };
    (place != 0).then(|| (!(place as u32), f32::from_bits(bits)))
}

impl Head {
    pub fn new(gpu: &Gpu, vocab: usize) -> Result<Self> {
        let module = gpu.load(ptx::HEAD)?;
        Ok(Self {
            vocab,
            chunk: module.function("glance_chunk", 0)?,
            row: module.function("glance_row", 0)?,
            asked: module.function("asked", 0)?,
            _module: module,
            staging: Staging::default(),
            logits: None,
            best: None,
            sums: None,
            told: None,
            pinned: None,
            rows: 0,
        })
    }

    /// Sends which rows are wanted and what is asked of them; the address of the rows' numbers `[wanted]`, with the question.
    fn send(&mut self, gpu: &Gpu, wanted: &[HeadRow<'_>]) -> Result<(u64, Question)> {
        let rows: Vec<u32> = wanted.iter().map(|w| w.row as u32).collect();
        let cold: Vec<f32> =
            wanted.iter().map(|w| if let Want::Glance(ask) = w.want { ask.temperature.recip() } else { 1.0 }).collect();
        let (mut asked_rows, mut asked_tokens) = (Vec::new(), Vec::new());
        for (row, wanted) in (0u32..).zip(wanted) {
            asked_tokens.extend_from_slice(wanted.named());
            asked_rows.resize(asked_tokens.len(), row);
        }
        self.staging.clear();
        let at = [
            self.staging.push(&rows),
            self.staging.push(&cold),
            self.staging.push(&asked_rows),
            self.staging.push(&asked_tokens),
        ];
        let base = self.staging.send(gpu, false)?;
        let [rows, cold, asked_rows, asked] = at.map(|at| base + at);
        Ok((rows, Question { cold, asked_rows, asked_tokens: asked, asked: asked_tokens.len() }))
    }

    /// Answers what is wanted. `product` is given the address of the rows' numbers and a buffer `[wanted][vocab]`, which it
    /// has filled once the stream is done; `marked` is called when all has been launched.
    pub fn answer(
        &mut self,
        gpu: &Gpu,
        wanted: &[HeadRow<'_>],
        product: impl FnOnce(u64, &Buffer) -> Result<()>,
        marked: impl FnOnce() -> Result<()>,
        out: &mut Vec<Said>,
    ) -> Result<()> {
        let (rows, question) = self.send(gpu, wanted)?;
        product(rows, gpu.grow(&mut self.logits, wanted.len() * self.vocab * 4)?)?;
        self.rows = wanted.len();
        let chunks = self.vocab.div_ceil(CHUNK);
        let glances = chunks <= MOST_CHUNKS && wanted.iter().any(|w| matches!(w.want, Want::Glance(_)));
        let told = if glances { wanted.len() * TOLD * 8 } else { 0 };
        let bytes = told + question.asked * 4;
        gpu.grow(&mut self.told, bytes)?;
        if glances {
            self.glance(gpu, wanted.len(), chunks, &question)?;
        }
        self.ask(gpu, &question, told)?;
        marked()?;
        if let Some(buffer) = &self.told {
            gpu.fetch(gpu.grow_pinned(&mut self.pinned, bytes)?, buffer, 0, bytes)?;
        }
        let all = |w: &HeadRow<'_>| matches!(w.want, Want::All) || (!glances && matches!(w.want, Want::Glance(_)));
        let heard = self.pinned.as_ref().map_or(&[][..], |pinned| &pinned.as_slice()[..bytes]);
        let (numbers, asked) = heard.split_at(told);
        let (numbers, asked) = (numbers.as_chunks::<8>().0, asked.as_chunks::<4>().0);
        let mut asked = asked.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        let first = out.len();
        for (row, wanted) in wanted.iter().enumerate() {
            let named: Vec<f32> = asked.by_ref().take(wanted.named().len()).collect();
            out.push(match wanted.want {
                Want::Glance(_) if glances => Said::Glance(glance(&numbers[row * TOLD..(row + 1) * TOLD], named)),
                _ => Said::Logits(named),
            });
        }
        let brought: Vec<usize> = (0..wanted.len()).filter(|&row| all(&wanted[row])).collect();
        let vocab = self.vocab;
        for run in brought.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(BROUGHT)) {
            let logits = self.bring(gpu, run[0], run.len())?;
            for (&row, logits) in run.iter().zip(logits.chunks_exact(vocab * 4)) {
                out[first + row] = Said::Logits(numbers_of(logits));
            }
        }
        Ok(())
    }

    fn glance(&mut self, gpu: &Gpu, rows: usize, chunks: usize, question: &Question) -> Result<()> {
        let args = Args {
            logits: self.logits.as_ref().map_or(0, Buffer::pointer),
            cold: question.cold,
            best: gpu.grow(&mut self.best, rows * chunks * TOP * 8)?.pointer(),
            sums: gpu.grow(&mut self.sums, rows * chunks * 16)?.pointer(),
            out: self.told.as_ref().map_or(0, Buffer::pointer),
            vocab: self.vocab as u32,
            chunks: chunks as u32,
        };
        let mut first = Launch {
            grid: (chunks as u32, rows as u32, 1),
            threads: CHUNK_THREADS,
            shared_bytes: 0,
            begin: Begin::After,
        };
        let parameter = (&raw const args).cast_mut().cast::<c_void>();
        // SAFETY: the kernel takes one `Glance`; its buffers have these rows.
        unsafe { gpu.launch(self.chunk, first, &mut [parameter])? };
        (first.grid, first.threads) = ((rows as u32, 1, 1), 1024);
        // SAFETY: as above.
        unsafe { gpu.launch(self.row, first, &mut [parameter]) }
    }

    /// The logits of named tokens, behind `told` bytes.
    fn ask(&self, gpu: &Gpu, question: &Question, told: usize) -> Result<()> {
        let (Some(logits), Some(to)) = (&self.logits, &self.told) else { return Ok(()) };
        if question.asked == 0 {
            return Ok(());
        }
        let (mut logits, mut rows, mut tokens) = (logits.pointer(), question.asked_rows, question.asked_tokens);
        let (mut to, mut vocab, mut count) = (to.pointer() + told as u64, self.vocab as u32, question.asked as u32);
        let mut parameters: [*mut c_void; 6] = [
            (&raw mut logits).cast(),
            (&raw mut rows).cast(),
            (&raw mut tokens).cast(),
            (&raw mut to).cast(),
            (&raw mut vocab).cast(),
            (&raw mut count).cast(),
        ];
        let launch = Launch { grid: (count.div_ceil(256), 1, 1), threads: 256, shared_bytes: 0, begin: Begin::After };
        // SAFETY: the kernel's six parameters; rows and tokens were checked, and the result has room for all.
        unsafe { gpu.launch(self.asked, launch, &mut parameters) }
    }

    /// All logits of one row of the last answer.
    pub fn fetch(&mut self, gpu: &Gpu, wanted: usize, out: &mut Vec<f32>) -> Result<()> {
        if wanted >= self.rows {
            return Err(Error::fault(format!("logits of row {wanted} of {} are asked for", self.rows)));
        }
        let bytes = self.bring(gpu, wanted, 1)?;
        out.extend(numbers_of(bytes));
        Ok(())
    }

    /// Bytes of the logits of some rows, on the host.
    fn bring(&mut self, gpu: &Gpu, first: usize, rows: usize) -> Result<&[u8]> {
        let (row_bytes, pinned) = (self.vocab * 4, gpu.grow_pinned(&mut self.pinned, rows * self.vocab * 4)?);
        let Some(logits) = &self.logits else { return Ok(&[]) };
        gpu.fetch(pinned, logits, first * row_bytes, rows * row_bytes)?;
        Ok(&pinned.as_slice()[..rows * row_bytes])
    }
}

fn numbers_of(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

fn glance(told: &[[u8; 8]], asked: Vec<f32>) -> Glance {
    let (sums, best) = told.split_at(2);
    Glance {
        top: best.iter().map_while(|place| token_and_logit(u64::from_ne_bytes(*place))).collect(),
        total: f64::from_ne_bytes(sums[0]),
        warm: f64::from_ne_bytes(sums[1]),
        asked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `place` of the kernel.
    fn place(logit: f32, token: u32) -> u64 {
        let bits = logit.to_bits();
        u64::from(if bits & 0x8000_0000 != 0 { !bits } else { bits | 0x8000_0000 }) << 32 | u64::from(!token)
    }

    #[test]
    fn places_order_as_logits_and_tokens_do_and_say_both() {
        let logits = [f32::NEG_INFINITY, f32::MIN, -1.5, -1e-30, 0.0, 1e-40, 1e-30, 0.5, 3e38];
        for pair in logits.windows(2) {
            assert!(place(pair[0], 0) < place(pair[1], 7));
        }
        assert!(place(2.0, 3) > place(2.0, 4));
        for logit in logits {
            for token in [0, 1, 128_255, u32::MAX] {
                assert_eq!(token_and_logit(place(logit, token)), Some((token, logit)));
            }
        }
        assert_eq!(token_and_logit(0), None);
    }
}
