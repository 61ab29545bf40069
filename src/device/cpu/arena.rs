//! Memory for K and V: `[layer][page][kv_head][K|V][16][head size]`, so that K and V of one (page, head) are contiguous.

use super::attend::KvLayer;
use super::int4;
use super::shared::Shared;
use crate::base::lazy;
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::kv::{PAGE_TOKENS, Slot};
use half::f16;
use half::slice::HalfFloatSliceExt;
use memmap2::MmapMut;

/// Numbers that K and V are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvNumber {
    F16,
    F32,
}

impl KvNumber {
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Pages of all layers. The system hands memory out, 2 MiB at a time where it can, as it is first written.
pub struct Arena {
    number: KvNumber,
    pages: usize,
    layers: usize,
    kv_heads: usize,
    head_size: usize,
    /// Anonymous memory of the system: zeros, aligned to its pages.
    memory: MmapMut,
}

impl Arena {
    pub fn new(number: KvNumber, pages: usize, layers: usize, kv_heads: usize, head_size: usize) -> Result<Self> {
        let bytes = [layers, kv_heads, 2 * PAGE_TOKENS, head_size, number.bytes()]
            .into_iter()
            .try_fold(pages.max(1), usize::checked_mul);
        let refuse = || {
            let wanted = bytes.map_or("more than any memory".into(), |b| Human(b as u64).to_string());
            Error::limit(format!(
                "no memory for {pages} pages of K/V ({wanted}); use a smaller --kv-budget (or --ram-budget, with --offload)"
            ))
        };
        let memory = MmapMut::map_anon(bytes.ok_or_else(refuse)?).map_err(|_| refuse())?;
        // One layer's frames are given back in parts: small pages.
        if layers > 1 {
            lazy::use_large_pages(&memory);
        }
        Ok(Self { number, pages, layers, kv_heads, head_size, memory })
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes of one page over all layers.
    pub fn page_bytes(&self) -> usize {
        self.layers * self.page_numbers() * self.number.bytes()
    }

    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Bytes of one page in one layer.
    pub fn layer_page_bytes(&self) -> usize {
        self.page_numbers() * self.number.bytes()
    }

    /// Another arena of the same numbers, for `frames` pages of single layers.
    pub fn frames(&self, frames: usize) -> Result<Self> {
        Self::new(self.number, frames, 1, self.kv_heads, self.head_size)
    }

    /// Copies page `page` of `layer` of `from` into page `frame` of layer 0.
    pub fn copy_page(&mut self, frame: usize, from: &Self, layer: usize, page: usize) {
        let bytes = self.layer_page_bytes();
        assert!(frame < self.pages && page < from.pages && layer < from.layers && bytes == from.layer_page_bytes());
        let at = (layer * from.pages + page) * bytes;
        self.memory[frame * bytes..(frame + 1) * bytes].copy_from_slice(&from.memory[at..at + bytes]);
    }

    /// Moves page `from` of layer 0 to `to`.
    pub fn move_page(&mut self, from: usize, to: usize) {
        let bytes = self.layer_page_bytes();
        self.memory.copy_within(from * bytes..(from + 1) * bytes, to * bytes);
    }

    /// The last layer's pages from `pages` on hold nothing any more.
    pub fn give_back(&mut self, pages: usize) {
        let from = ((self.layers - 1) * self.pages + pages) * self.layer_page_bytes();
        lazy::give_back(&mut self.memory, from);
    }

    pub fn number(&self) -> KvNumber {
        self.number
    }

    /// Leaves of a page of layer 0 what four bits a number keep of it.
    pub fn round_to_int4(&mut self, frame: usize) {
        let (numbers, d) = (self.page_numbers(), self.head_size);
        let span = frame * numbers..(frame + 1) * numbers;
        let mut row = vec![0f32; d];
        match self.writer(0).numbers {
            Numbers::F16(all) => {
                // SAFETY: nobody else holds a part.
                for numbers in unsafe { all.slice(span) }.chunks_exact_mut(d) {
                    numbers.convert_to_f32_slice(&mut row);
                    int4::round(&mut row);
                    numbers.convert_from_f32_slice(&row);
                }
            }
            // SAFETY: as above.
            Numbers::F32(all) => unsafe { all.slice(span) }.chunks_exact_mut(d).for_each(int4::round),
        }
    }

    /// What `bytes` of K/V take in four bits a number.
    pub fn int4_bytes(&self, bytes: usize) -> usize {
        int4::bytes(bytes / self.number.bytes(), self.head_size)
    }

    /// Numbers of one page in one layer.
    fn page_numbers(&self) -> usize {
        self.kv_heads * 2 * PAGE_TOKENS * self.head_size
    }

    /// Numbers of one layer, and the first of layer `layer`.
    fn span(&self, layer: usize) -> (usize, usize) {
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        let numbers = self.pages * self.page_numbers();
        (numbers, layer * numbers)
    }

    pub fn layer(&self, layer: usize) -> KvLayer<'_> {
        let (numbers, first) = self.span(layer);
        // SAFETY: the memory holds `layers` spans of `numbers` numbers, zeroed or written as numbers, aligned to the system's
        // pages; shared with `&self`.
        unsafe {
            match self.number {
                KvNumber::F16 => {
                    KvLayer::F16(std::slice::from_raw_parts(self.memory.as_ptr().cast::<f16>().add(first), numbers))
                }
                KvNumber::F32 => {
                    KvLayer::F32(std::slice::from_raw_parts(self.memory.as_ptr().cast::<f32>().add(first), numbers))
                }
            }
        }
    }

    pub fn writer(&mut self, layer: usize) -> KvWriter<'_> {
        let (numbers, first) = self.span(layer);
        let memory = self.memory.as_mut_ptr();
        // SAFETY: as `layer`, alone with `&mut self`.
        let numbers = unsafe {
            match self.number {
                KvNumber::F16 => {
                    let all = std::slice::from_raw_parts_mut(memory.cast::<f16>().add(first), numbers);
                    Numbers::F16(Shared::new(all))
                }
                KvNumber::F32 => {
                    let all = std::slice::from_raw_parts_mut(memory.cast::<f32>().add(first), numbers);
                    Numbers::F32(Shared::new(all))
                }
            }
        };
        KvWriter { numbers, kv_heads: self.kv_heads, head_size: self.head_size }
    }
}

enum Numbers<'a> {
    F16(Shared<'a, f16>),
    F32(Shared<'a, f32>),
}

/// Lets tasks write different slots of one layer.
pub struct KvWriter<'a> {
    numbers: Numbers<'a>,
    kv_heads: usize,
    head_size: usize,
}

impl KvWriter<'_> {
    /// Writes one token's `k` and `v`, each `[kv_head][head size]`.
    ///
    /// # Safety
    /// No two tasks write the same slot.
    pub unsafe fn put(&self, slot: Slot, k: &[f32], v: &[f32]) {
        let d = self.head_size;
        for head in 0..self.kv_heads {
            for (which, from) in [k, v].into_iter().enumerate() {
                let run = ((slot.page.0 as usize * self.kv_heads + head) * 2 + which) * PAGE_TOKENS;
                let at = (run + slot.offset as usize) * d;
                let from = &from[head * d..(head + 1) * d];
                // SAFETY: the slot is this task's, as the caller promises.
                unsafe {
                    match &self.numbers {
                        Numbers::F16(all) => all.slice(at..at + d).convert_from_f32_slice(from),
                        Numbers::F32(all) => all.slice(at..at + d).copy_from_slice(from),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;
    use crate::kv::PageId;

    #[test]
    fn tokens_lie_where_the_layout_says() {
        for number in [KvNumber::F16, KvNumber::F32] {
            let (layers, heads, d) = (3, 2, 4);
            let mut arena = Arena::new(number, 5, layers, heads, d).unwrap();
            assert_eq!(arena.page_bytes(), 3 * 2 * 2 * 16 * 4 * number.bytes());
            let k: Vec<f32> = (0..8).map(|i| i as f32).collect();
            let v: Vec<f32> = (0..8).map(|i| -(i as f32)).collect();
            // SAFETY: one writer.
            unsafe { arena.writer(1).put(Slot { page: PageId(4), offset: 7 }, &k, &v) };
            let read = |layer: usize| match arena.layer(layer) {
                KvLayer::F16(all) => all.iter().map(|x| x.to_f32()).collect::<Vec<_>>(),
                KvLayer::F32(all) => all.to_vec(),
            };
            let at = |head: usize, which: usize, i: usize| (((4 * heads + head) * 2 + which) * 16 + 7) * d + i;
            for i in 0..8 {
                assert_eq!(read(1)[at(i / 4, 0, i % 4)], k[i]);
                assert_eq!(read(1)[at(i / 4, 1, i % 4)], v[i]);
            }
            assert!(read(0).iter().chain(&read(2)).all(|&x| x == 0.0));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_was_never_written_is_not_taken() {
        let resident = || -> u64 {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
        };
        let before = resident();
        let arena = Arena::new(KvNumber::F16, 5000, 4, 8, 128).unwrap();
        assert!(arena.page_bytes() * arena.pages() > 1 << 30);
        assert!(resident() < before + (256 << 20));
    }

    #[test]
    fn too_much_is_an_error_not_an_abort() {
        for pages in [1 << 40, usize::MAX] {
            let error = Arena::new(KvNumber::F32, pages, 32, 8, 128).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Limit);
            assert!(error.message().contains("--kv-budget"), "{error}");
        }
    }
}
