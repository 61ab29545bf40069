//! Memory for numbers that begins at a page border, is zero, and is taken from the system only where it is touched.

use bytemuck::Pod;
use memmap2::MmapMut;
use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Bytes behind the numbers that nobody touches: the system lays one mapping beside the other, and a core that reads up to
/// the end of one fetches on into what comes next. Where another core writes that, both wait for each other's lines:
/// attention on two threads took up to 1.3 times as long, by the luck of who had asked for memory first.
const GAP: usize = 64 << 10;

/// Asks the system for pages of 2 MiB, where it has such: memory that is read all over would have the processor look for the
/// place of each of its small ones. The system then hands out so much at a time.
pub fn use_large_pages(memory: &MmapMut) {
    #[cfg(target_os = "linux")]
    {
        // A system that cannot goes on with small ones.
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// At least as much as any system's page.
const SYSTEM_PAGE: usize = 1 << 16;

/// `len` numbers in anonymous memory of their own. Vectors of 64 bytes lie in one cache line each, which those of a
/// `Vec` do not.
#[derive(Debug)]
pub struct Lazy<T> {
    /// Nothing for no numbers.
    memory: Option<MmapMut>,
    len: usize,
    large_pages: bool,
    number: PhantomData<T>,
}

impl<T: Pod> Lazy<T> {
    /// Zeros. Without memory the process ends, as with a `Vec`.
    pub fn zeros(len: usize) -> Self {
        let Ok(layout) = Layout::array::<T>(len) else { handle_alloc_error(Layout::new::<T>()) };
        let memory =
            (len > 0).then(|| MmapMut::map_anon(layout.size() + GAP).unwrap_or_else(|_| handle_alloc_error(layout)));
        Self { memory, len, large_pages: false, number: PhantomData }
    }

    /// Zeros in pages of 2 MiB, where the system has such: for memory that is used all over.
    pub fn in_large_pages(len: usize) -> Self {
        let zeros = Self::zeros(len);
        zeros.memory.iter().for_each(use_large_pages);
        Self { large_pages: true, ..zeros }
    }

    /// Numbers from `from` on are not needed any more: the system may have their memory until they are written again. What they
    /// are from now on is not said.
    pub fn give_back(&mut self, from: usize) {
        if let Some(memory) = &mut self.memory {
            give_back(memory, from * size_of::<T>());
        }
    }

    /// Room for at least `len` numbers; what was there before is gone where more is needed.
    pub fn grow(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeros(len.next_power_of_two());
        }
    }
}

/// Gives the system the whole pages of anonymous memory from byte `from` on; they read as zeros where it took them.
pub fn give_back(memory: &mut MmapMut, from: usize) {
    let from = from.next_multiple_of(SYSTEM_PAGE);
    if from < memory.len() {
        #[cfg(unix)]
        // SAFETY: the memory is anonymous and private, and borrowed alone: no reference sees its numbers change, which are plain
        // numbers whatever the system leaves there. A refusal leaves all as it was.
        drop(unsafe { memory.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, memory.len() - from) });
    }
}

impl<T: Pod> Default for Lazy<T> {
    fn default() -> Self {
        Self::zeros(0)
    }
}

impl<T: Pod> Clone for Lazy<T> {
    fn clone(&self) -> Self {
        let mut other = if self.large_pages { Self::in_large_pages(self.len) } else { Self::zeros(self.len) };
        other.copy_from_slice(self);
        other
    }
}

impl<T: Pod> Deref for Lazy<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let Some(memory) = &self.memory else { return &[] };
        let (_, numbers, _) = bytemuck::pod_align_to(memory);
        &numbers[..self.len]
    }
}

impl<T: Pod> DerefMut for Lazy<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let Some(memory) = &mut self.memory else { return &mut [] };
        let (_, numbers, _) = bytemuck::pod_align_to_mut(memory);
        &mut numbers[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_zero_aligned_and_grows() {
        let mut numbers = Lazy::<f32>::default();
        assert!(numbers.is_empty());
        numbers.grow(100);
        assert!(numbers.len() >= 100 && numbers.iter().all(|&x| x == 0.0));
        assert_eq!(numbers.as_ptr() as usize % 64, 0);
        numbers[99] = 7.0;
        let other = numbers.clone();
        numbers.grow(10);
        assert_eq!((numbers[99], other[99], other.len()), (7.0, 7.0, numbers.len()));
    }

    #[test]
    fn what_is_given_back_is_the_end_alone() {
        let mut numbers = Lazy::<f32>::zeros(100_000);
        for from in [100_000, 50_000, 16_384, 1, 0] {
            numbers.fill(3.0);
            numbers.give_back(from);
            assert!(numbers[..from].iter().all(|&x| x == 3.0), "from {from}");
            #[cfg(target_os = "linux")]
            {
                let gone = ((from * 4).next_multiple_of(SYSTEM_PAGE) / 4).min(numbers.len());
                assert!(numbers[gone..].iter().all(|&x| x == 0.0), "from {from}");
            }
            assert!(numbers[from..].iter().all(|&x| x == 0.0 || x == 3.0));
        }
        Lazy::<u8>::default().give_back(0);
    }
}
