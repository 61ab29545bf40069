//! A slice into which several tasks of one operation write, each in its own places.

use std::marker::PhantomData;
use std::ops::Range;

#[derive(Clone, Copy)]
pub struct Shared<'a, T> {
    ptr: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` split by its users into disjoint parts, which may go to other threads where T may.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { ptr: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// A part; panics outside the slice.
    ///
    /// # Safety
    /// No two parts that are alive at once overlap.
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part {range:?} of {}", self.len);
        // SAFETY: inside the slice that this was made from; disjoint from other parts as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}
