//! The heads that attention is compiled for.

use crate::base::{Error, Result};
use crate::device::cuda::work::ITEM_ROWS;

/// Numbers of queries, K/V and outputs on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    F16,
    Bf16,
}

/// Head sizes that attention is compiled for.
pub const HEAD_SIZES: [u32; 4] = [64, 80, 96, 128];

/// The heads of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_size: u32,
    pub number: Number,
}

impl HeadShape {
    /// Refuses heads that no kernel is compiled for; asks no card.
    pub fn check(&self) -> Result<()> {
        let Self { heads, kv_heads, head_size, .. } = *self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Error::input(format!("{heads} query heads do not share {kv_heads} K/V heads evenly")));
        }
        if self.group() > ITEM_ROWS {
            return Err(Error::input(format!(
                "{} query heads share a K/V head, and the CUDA kernels take {ITEM_ROWS} at most: use --device cpu",
                self.group()
            )));
        }
        if !HEAD_SIZES.contains(&head_size) {
            let [some @ .., last] = HEAD_SIZES.map(|size| size.to_string());
            return Err(Error::input(format!(
                "there is no CUDA kernel for head size {head_size}, only for {} and {last}: use --device cpu",
                some.join(", ")
            )));
        }
        Ok(())
    }

    /// Query heads of a K/V head.
    pub fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// Bytes of K and V of one token of one layer.
    pub fn kv_bytes(&self) -> u64 {
        4 * u64::from(self.kv_heads * self.head_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;
    use crate::device::cuda::ptx;
    use crate::device::cuda::work::Kernel;

    #[test]
    fn heads_without_a_kernel_are_refused_with_the_sizes_that_have_one() {
        let shape = HeadShape { heads: 32, kv_heads: 8, head_size: 128, number: Number::F16 };
        for head_size in 1..=256 {
            let refused = HeadShape { head_size, ..shape }.check().err();
            for number in [Number::F16, Number::Bf16] {
                let compiled = ptx::attend(Kernel::Ampere, number, head_size).is_some();
                assert_eq!(refused.is_none(), compiled, "head size {head_size}");
            }
            if let Some(error) = refused {
                let (text, wanted) =
                    (error.message(), format!("size {head_size}, only for 64, 80, 96 and 128: use --device cpu"));
                assert!(error.kind() == ErrorKind::Input && text.contains(&wanted), "{text}");
            }
        }
        let part = |heads: u32, kv_heads: u32, part: &str| {
            let error = HeadShape { heads, kv_heads, ..shape }.check().unwrap_err();
            assert!(error.message().contains(part), "{error}");
        };
        part(32, 0, "evenly");
        part(32, 5, "evenly");
        part(258, 2, "129 query heads share");
    }
}
