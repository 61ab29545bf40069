//! The kernels as PTX, compiled ahead by `kernels/build.sh`: the driver assembles them for the card at the first use.

use super::attend::Number;
use super::work::Kernel;

macro_rules! ptx {
    ($name:literal) => {
        include_str!(concat!("../../../kernels/ptx/", $name, ".ptx"))
    };
}

pub const HEAD: &str = ptx!("head");
pub const KEEP: &str = ptx!("keep");
pub const MEASURE: &str = ptx!("measure");
pub const OFFLOAD: &str = ptx!("offload");

/// Products, and what stands between them, for a number type; `early`: for cards on which launches overlap.
pub fn product(number: Number, early: bool) -> &'static str {
    match (number, early) {
        (Number::F16, false) => ptx!("product_f16"),
        (Number::Bf16, false) => ptx!("product_bf16"),
        (Number::F16, true) => ptx!("product_f16_90"),
        (Number::Bf16, true) => ptx!("product_bf16_90"),
    }
}

pub fn step(number: Number, early: bool) -> &'static str {
    match (number, early) {
        (Number::F16, false) => ptx!("step_f16"),
        (Number::Bf16, false) => ptx!("step_bf16"),
        (Number::F16, true) => ptx!("step_f16_90"),
        (Number::Bf16, true) => ptx!("step_bf16_90"),
    }
}

/// Attention over what H2O keeps.
pub fn heavy(number: Number) -> &'static str {
    match number {
        Number::F16 => ptx!("heavy_f16"),
        Number::Bf16 => ptx!("heavy_bf16"),
    }
}

/// K/V in four bits.
pub fn int4(number: Number) -> &'static str {
    match number {
        Number::F16 => ptx!("int4_f16"),
        Number::Bf16 => ptx!("int4_bf16"),
    }
}

/// The choice of tokens to attend to.
pub fn select(number: Number) -> &'static str {
    match number {
        Number::F16 => ptx!("select_f16"),
        Number::Bf16 => ptx!("select_bf16"),
    }
}

/// Attention over selected tokens.
pub fn picked(number: Number) -> &'static str {
    match number {
        Number::F16 => ptx!("picked_f16"),
        Number::Bf16 => ptx!("picked_bf16"),
    }
}

/// Unfused attention for a number type and head size, if there is one.
pub fn dense(number: Number, head_size: u32) -> Option<&'static str> {
    Some(match (number, head_size) {
        (Number::F16, 64) => ptx!("dense_f16_64"),
        (Number::F16, 80) => ptx!("dense_f16_80"),
        (Number::F16, 96) => ptx!("dense_f16_96"),
        (Number::F16, 128) => ptx!("dense_f16_128"),
        (Number::Bf16, 64) => ptx!("dense_bf16_64"),
        (Number::Bf16, 80) => ptx!("dense_bf16_80"),
        (Number::Bf16, 96) => ptx!("dense_bf16_96"),
        (Number::Bf16, 128) => ptx!("dense_bf16_128"),
        _ => return None,
    })
}

/// The attention kernel for a number type and head size, if there is one.
pub fn attend(kernel: Kernel, number: Number, head_size: u32) -> Option<&'static str> {
    Some(match (kernel, number, head_size) {
        (Kernel::Ampere, Number::F16, 64) => ptx!("attend_f16_64"),
        (Kernel::Ampere, Number::F16, 80) => ptx!("attend_f16_80"),
        (Kernel::Ampere, Number::F16, 96) => ptx!("attend_f16_96"),
        (Kernel::Ampere, Number::F16, 128) => ptx!("attend_f16_128"),
        (Kernel::Ampere, Number::Bf16, 64) => ptx!("attend_bf16_64"),
        (Kernel::Ampere, Number::Bf16, 80) => ptx!("attend_bf16_80"),
        (Kernel::Ampere, Number::Bf16, 96) => ptx!("attend_bf16_96"),
        (Kernel::Ampere, Number::Bf16, 128) => ptx!("attend_bf16_128"),
        (Kernel::Hopper, Number::F16, 64) => ptx!("attend_hopper_f16_64"),
        (Kernel::Hopper, Number::F16, 128) => ptx!("attend_hopper_f16_128"),
        (Kernel::Hopper, Number::Bf16, 64) => ptx!("attend_hopper_bf16_64"),
        (Kernel::Hopper, Number::Bf16, 128) => ptx!("attend_hopper_bf16_128"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    fn hash_line(names: &[&str]) -> String {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let mut hash = Sha256::new();
        for name in names {
            hash.update(std::fs::read(folder.join(name)).expect("a kernel source"));
        }
        let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        format!("// sources sha256 {hex}\n")
    }

    #[test]
    fn ptx_was_compiled_from_the_sources_beside_it() {
        let line = hash_line(&[
            "attend.cu",
            "attend_hopper.cu",
            "dense.cu",
            "measure.cu",
            "plan.cuh",
            "state.cuh",
            "tensor.cuh",
        ]);
        let mut texts = vec![MEASURE];
        for number in [Number::F16, Number::Bf16] {
            for size in [64, 80, 96, 128] {
                texts.extend(dense(number, size));
                texts.extend(attend(Kernel::Ampere, number, size));
                texts.extend(attend(Kernel::Hopper, number, size));
            }
        }
        assert_eq!(texts.len(), 21);
        for text in texts {
            assert!(text.starts_with(&line), "kernels/ changed: run kernels/build.sh");
        }
        type Texts = fn(Number, bool) -> &'static str;
        let own_line = |source| hash_line(&[source, "bounded.cuh", "state.cuh", "tensor.cuh"]);
        for (source, text) in [("product.cu", product as Texts), ("step.cu", step)] {
            for (number, early) in
                [(Number::F16, false), (Number::Bf16, false), (Number::F16, true), (Number::Bf16, true)]
            {
                let text = text(number, early);
                assert!(text.starts_with(&own_line(source)), "kernels/ changed: run kernels/build.sh");
                assert_eq!(text.contains("griddepcontrol.wait"), early, "only kernels that wait may begin early");
            }
        }
        for (source, text) in [("head.cu", HEAD), ("offload.cu", OFFLOAD)] {
            assert!(text.starts_with(&own_line(source)), "kernels/ changed: run kernels/build.sh");
        }
        let select_line =
            |source| hash_line(&[source, "select.cuh", "bounded.cuh", "keep.cuh", "state.cuh", "tensor.cuh"]);
        for number in [Number::F16, Number::Bf16] {
            for (source, text) in [("int4.cu", int4(number)), ("heavy.cu", heavy(number))] {
                assert!(text.starts_with(&own_line(source)), "kernels/ changed: run kernels/build.sh");
            }
            for (source, text) in [("select.cu", select(number)), ("picked.cu", picked(number))] {
                assert!(text.starts_with(&select_line(source)), "kernels/ changed: run kernels/build.sh");
            }
        }
        let keep_line = hash_line(&["keep.cu", "keep.cuh", "state.cuh"]);
        assert!(KEEP.starts_with(&keep_line), "kernels/ changed: run kernels/build.sh");
    }
}
