//! GGML's tensor types: how many numbers a block holds in how many bytes, and which of them can be computed with.
//! Source: `ggml.h` and `ggml-common.h`.

use candle_core::quantized::GgmlDType;

pub struct BlockType {
    pub id: u32,
    pub name: &'static str,
    /// Numbers a block holds.
    pub numbers: u64,
    /// Bytes a block takes.
    pub bytes: u64,
    /// `None`: known, so that a file can be listed, but not computed with.
    pub kind: Option<GgmlDType>,
}

const fn usable(id: u32, name: &'static str, numbers: u64, bytes: u64, kind: GgmlDType) -> BlockType {
    BlockType { id, name, numbers, bytes, kind: Some(kind) }
}

const fn listed(id: u32, name: &'static str, numbers: u64, bytes: u64) -> BlockType {
    BlockType { id, name, numbers, bytes, kind: None }
}

pub const TYPES: [BlockType; 32] = [
    usable(0, "F32", 1, 4, GgmlDType::F32),
    usable(1, "F16", 1, 2, GgmlDType::F16),
    usable(2, "Q4_0", 32, 18, GgmlDType::Q4_0),
    usable(3, "Q4_1", 32, 20, GgmlDType::Q4_1),
    usable(6, "Q5_0", 32, 22, GgmlDType::Q5_0),
    usable(7, "Q5_1", 32, 24, GgmlDType::Q5_1),
    usable(8, "Q8_0", 32, 34, GgmlDType::Q8_0),
    usable(9, "Q8_1", 32, 36, GgmlDType::Q8_1),
    usable(10, "Q2_K", 256, 84, GgmlDType::Q2K),
    usable(11, "Q3_K", 256, 110, GgmlDType::Q3K),
    usable(12, "Q4_K", 256, 144, GgmlDType::Q4K),
    usable(13, "Q5_K", 256, 176, GgmlDType::Q5K),
    usable(14, "Q6_K", 256, 210, GgmlDType::Q6K),
    usable(15, "Q8_K", 256, 292, GgmlDType::Q8K),
    listed(16, "IQ2_XXS", 256, 66),
    listed(17, "IQ2_XS", 256, 74),
    listed(18, "IQ3_XXS", 256, 98),
    listed(19, "IQ1_S", 256, 50),
    listed(20, "IQ4_NL", 32, 18),
    listed(21, "IQ3_S", 256, 110),
    listed(22, "IQ2_S", 256, 82),
    listed(23, "IQ4_XS", 256, 136),
    listed(24, "I8", 1, 1),
    listed(25, "I16", 1, 2),
    listed(26, "I32", 1, 4),
    listed(27, "I64", 1, 8),
    listed(28, "F64", 1, 8),
    listed(29, "IQ1_M", 256, 56),
    usable(30, "BF16", 1, 2, GgmlDType::BF16),
    listed(34, "TQ1_0", 256, 54),
    listed(35, "TQ2_0", 256, 66),
    listed(39, "MXFP4", 32, 17),
];

pub fn by_id(id: u32) -> Option<&'static BlockType> {
    TYPES.iter().find(|t| t.id == id)
}

/// GGML's name of a type that can be computed with.
pub fn name_of(kind: GgmlDType) -> &'static str {
    TYPES.iter().find(|t| t.kind == Some(kind)).map_or("?", |t| t.name)
}

/// Names of the types that can be computed with, for messages.
pub fn usable_names() -> String {
    let names: Vec<&str> = TYPES.iter().filter(|t| t.kind.is_some()).map(|t| t.name).collect();
    names.join(", ")
}

/// The type of a name such as `q4_1` or `bf16`, in any case.
pub fn by_name(name: &str) -> Option<&'static BlockType> {
    TYPES.iter().find(|t| t.name.eq_ignore_ascii_case(name) || t.name.replace('_', "").eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_those_of_the_arithmetic_below() {
        for t in TYPES.iter() {
            if let Some(kind) = t.kind {
                assert_eq!((t.numbers, t.bytes), (kind.block_size() as u64, kind.type_size() as u64), "{}", t.name);
            }
        }
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(by_name("q4_1").map(|t| t.id), Some(3));
        assert_eq!(by_name("Q6K").map(|t| t.id), Some(14));
        assert_eq!(by_name("bf16").map(|t| t.id), Some(30));
        assert!(by_name("q9").is_none());
    }
}
