//! The Llama forward pass: the order of the device's operations, nothing else.

use crate::base::Result;
use crate::device::{Device, HeadRow, Step};

/// A model on a device.
pub struct Llama {
    device: Box<dyn Device>,
    layers: usize,
}

impl Llama {
    /// `layers` as the device's model has them.
    pub fn new(device: Box<dyn Device>, layers: usize) -> Self {
        Self { device, layers }
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Runs one packed step: writes K and V of every row at its slot, and appends the logits of each wanted row to `out`.
    /// A step without rows does nothing.
    pub fn forward(&mut self, step: &Step<'_>, wanted: &[HeadRow<'_>], out: &mut Vec<Vec<f32>>) -> Result<()> {
        if step.tokens.is_empty() {
            return Ok(());
        }
        let device = &mut *self.device;
        device.begin(step)?;
        for layer in 0..self.layers {
            device.attn_in(layer)?;
            device.attend(layer, step.work)?;
            device.attn_out(layer)?;
            device.mlp(layer)?;
        }
        if wanted.is_empty() { Ok(()) } else { device.head(wanted, out) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{self, Path, plain_work, random_weights, read_folder, read_gguf, small_shape};
    use super::*;
    use crate::base::rng::stream;
    use crate::device::cpu::arena::KvNumber;
    use crate::device::cpu::simd::Simd;
    use crate::device::cpu::{Activations, CpuDevice, CpuOptions};
    use crate::device::weight::Weights;
    use crate::device::{RopeLayout, Shape};
    use crate::kv::PAGE_TOKENS;
    use candle_core::quantized::GgmlDType;
    use rand::Rng;
    use std::path::PathBuf;

    const EXACT: CpuOptions =
        CpuOptions { threads: 2, activations: Activations::F32, pages: 64, kv: KvNumber::F32, simd: Simd::PORTABLE };

    fn options(activations: Activations) -> CpuOptions {
        CpuOptions { activations, simd: Simd::best(), ..EXACT }
    }

    fn llama(weights: &Weights, options: CpuOptions) -> Llama {
        Llama::new(Box::new(CpuDevice::new(weights.clone(), options).unwrap()), weights.shape.layers)
    }

    /// A step of `tokens` on `paths`; logits of every row.
    fn step(llama: &mut Llama, tokens: &[u32], paths: &[Path]) -> Vec<Vec<f32>> {
        let positions: Vec<u32> = paths.iter().map(|p| p.position).collect();
        let slots: Vec<_> = paths.iter().map(Path::slot).collect();
        let work = plain_work(paths);
        let wanted: Vec<_> = (0..tokens.len()).map(|row| HeadRow { row, allowed: None }).collect();
        let mut out = Vec::new();
        let step = Step { tokens, positions: &positions, slots: &slots, work: &work };
        llama.forward(&step, &wanted, &mut out).unwrap();
        out
    }

    /// One sequence in parts of the given lengths; logits of every position.
    fn sequence(llama: &mut Llama, tokens: &[u32], parts: &[usize]) -> Vec<Vec<f32>> {
        let pages: Vec<u32> = (0..tokens.len().div_ceil(PAGE_TOKENS) as u32).rev().collect();
        let mut out = Vec::new();
        let mut from = 0;
        for &len in parts {
            let paths: Vec<Path> =
                (from..from + len).map(|p| Path { pages: pages.clone(), position: p as u32 }).collect();
            out.extend(step(llama, &tokens[from..from + len], &paths));
            from += len;
        }
        assert_eq!(from, tokens.len());
        out
    }

    fn worst(found: &[Vec<f32>], expected: &[Vec<f64>]) -> f64 {
        let mut worst = 0f64;
        for (found, expected) in found.iter().zip(expected) {
            for (&found, expected) in found.iter().zip(expected) {
                let error = (found as f64 - expected).abs();
                if !(error <= worst) {
                    worst = error;
                }
            }
        }
        worst
    }

    fn tokens(shape: &Shape, n: usize, seed: u64) -> Vec<u32> {
        let mut random = stream(seed, "tokens", &[]);
        (0..n).map(|_| random.random_range(0..shape.vocab as u32)).collect()
    }

    #[test]
    fn a_sequence_equals_the_dense_reference_in_every_layout_and_type() {
        let all = [GgmlDType::Q4_0, GgmlDType::Q4_1, GgmlDType::Q5_0, GgmlDType::F16, GgmlDType::Q8_0, GgmlDType::BF16];
        for (layout, kinds, tied) in [
            (RopeLayout::Halves, &[GgmlDType::F32][..], true),
            (RopeLayout::Interleaved, &all[..], false),
            (RopeLayout::Interleaved, &[GgmlDType::Q4_1][..], true),
        ] {
            let mut shape = small_shape(layout);
            shape.rope.factors = tied.then(|| (0..shape.head_size / 2).map(|i| 1.0 + i as f32).collect());
            let weights = random_weights(&shape, kinds, tied, 5);
            let tokens = tokens(&shape, 75, 1);
            let expected = reference::logits(&weights, &tokens);
            for parts in [&[75][..], &[40, 35], &[1, 73, 1]] {
                let found = sequence(&mut llama(&weights, options(Activations::F32)), &tokens, parts);
                let error = worst(&found, &expected);
                assert!(error < 2e-3, "{layout:?} {kinds:?} in parts {parts:?}: {error}");
                let coarse = sequence(&mut llama(&weights, options(Activations::Int8)), &tokens, parts);
                let error = worst(&coarse, &expected);
                assert!(error < 0.5, "{layout:?} {kinds:?} int8 in parts {parts:?}: {error}");
            }
        }
    }

    #[test]
    fn the_leaves_of_a_random_tree_equal_their_paths_read_alone() {
        let shape = small_shape(RopeLayout::Interleaved);
        let weights = random_weights(&shape, &[GgmlDType::Q8_0, GgmlDType::Q4_1], true, 6);
        for activations in [Activations::F32, Activations::Int8] {
            let mut random = stream(9, "tree", &[]);
            // A stem of 32 tokens, then branches that leave it at page borders, all in one step after the stem.
            let stem = tokens(&shape, 32, 2);
            let mut llama_tree = llama(&weights, options(activations));
            let stem_paths: Vec<Path> = (0..32).map(|p| Path { pages: vec![0, 1], position: p }).collect();
            let stem_logits = step(&mut llama_tree, &stem, &stem_paths);
            let mut rows = Vec::new();
            let mut sequences = Vec::new();
            for branch in 0..9u32 {
                let shared = random.random_range(0..=2u32);
                let own = tokens(&shape, random.random_range(1..=20usize), 10 + u64::from(branch));
                let mut pages: Vec<u32> = (0..shared).collect();
                pages.extend([2 + 2 * branch, 3 + 2 * branch]);
                let mut sequence = stem[..shared as usize * PAGE_TOKENS].to_vec();
                for &token in &own {
                    rows.push((token, Path { pages: pages.clone(), position: sequence.len() as u32 }, branch));
                    sequence.push(token);
                }
                sequences.push(sequence);
            }
            let (ids, paths): (Vec<u32>, Vec<Path>) = rows.iter().map(|(t, p, _)| (*t, p.clone())).unzip();
            let found = step(&mut llama_tree, &ids, &paths);
            for (branch, tokens) in sequences.iter().enumerate() {
                let mut alone = llama(&weights, CpuOptions { threads: 1, ..options(activations) });
                let expected = sequence(&mut alone, tokens, &[tokens.len()]);
                let exact = reference::logits(&weights, tokens);
                for ((_, path, _), logits) in rows.iter().zip(&found).filter(|((_, _, b), _)| *b == branch as u32) {
                    let position = path.position as usize;
                    // Bit for bit: a row depends on its own path alone.
                    assert!(*logits == expected[position], "{activations:?} branch {branch} position {position}");
                    let error = worst(&[logits.clone()], &[exact[position].clone()]);
                    let bound = if activations == Activations::F32 { 2e-3 } else { 0.5 };
                    assert!(error < bound, "{activations:?} branch {branch} position {position}: {error}");
                }
                let common = stem.iter().zip(tokens).take_while(|(a, b)| a == b).count();
                assert!(stem_logits[..common] == expected[..common], "{activations:?} branch {branch}, stem");
            }
        }
    }

    #[test]
    fn threads_and_instruction_sets_change_no_bit() {
        let shape = small_shape(RopeLayout::Halves);
        let weights = random_weights(&shape, &[GgmlDType::Q4_0, GgmlDType::F16, GgmlDType::Q5_1], false, 7);
        let tokens = tokens(&shape, 61, 3);
        for activations in [Activations::F32, Activations::Int8] {
            for kv in [KvNumber::F16, KvNumber::F32] {
                let base = CpuOptions { kv, activations, ..EXACT };
                let expected = sequence(&mut llama(&weights, base), &tokens, &[61]);
                for simd in Simd::available() {
                    for threads in [1, 2, 3] {
                        let found =
                            sequence(&mut llama(&weights, CpuOptions { simd, threads, ..base }), &tokens, &[20, 41]);
                        assert!(found == expected, "{simd} {threads} threads {activations:?} {kv:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn allowed_tokens_get_the_same_logits_as_in_the_whole_vocabulary() {
        let shape = small_shape(RopeLayout::Halves);
        let weights = random_weights(&shape, &[GgmlDType::Q8_0], true, 8);
        for activations in [Activations::F32, Activations::Int8] {
            let mut llama = llama(&weights, options(activations));
            let tokens = tokens(&shape, 5, 4);
            let paths: Vec<Path> = (0..5).map(|p| Path { pages: vec![0], position: p }).collect();
            let all = step(&mut llama, &tokens, &paths);
            let (some, many) = ([69u32, 0, 3, 3, 17], (0..70).rev().collect::<Vec<u32>>());
            let wanted = [
                HeadRow { row: 3, allowed: Some(&some) },
                HeadRow { row: 1, allowed: None },
                HeadRow { row: 4, allowed: Some(&many) },
                HeadRow { row: 0, allowed: Some(&[]) },
                HeadRow { row: 2, allowed: None },
            ];
            let positions = [0, 1, 2, 3, 4];
            let slots: Vec<_> = paths.iter().map(Path::slot).collect();
            let work = plain_work(&paths);
            let mut out = vec![vec![1.0]];
            let step = Step { tokens: &tokens, positions: &positions, slots: &slots, work: &work };
            llama.forward(&step, &wanted, &mut out).unwrap();
            let pick = |row: usize, ids: &[u32]| ids.iter().map(|&id| all[row][id as usize]).collect::<Vec<_>>();
            let expected = vec![vec![1.0], pick(3, &some), all[1].clone(), pick(4, &many), vec![], all[2].clone()];
            assert!(out == expected);
        }
    }

    #[test]
    fn steps_that_cannot_be_run_are_refused() {
        let shape = small_shape(RopeLayout::Halves);
        let weights = random_weights(&shape, &[GgmlDType::F32], true, 8);
        let mut llama = llama(&weights, options(Activations::F32));
        let mut check = |tokens: &[u32], paths: &[Path], expected: &str| {
            let positions: Vec<u32> = paths.iter().map(|p| p.position).collect();
            let slots: Vec<_> = paths.iter().map(|p| Path { position: p.position % 16, ..p.clone() }.slot()).collect();
            let work = plain_work(paths);
            let step = Step { tokens, positions: &positions, slots: &slots, work: &work };
            let error = llama.forward(&step, &[], &mut Vec::new()).unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        };
        let path = |page: u32, position: u32| Path { pages: vec![page; 40], position };
        check(&[70], &[path(0, 0)], "token 70");
        check(&[1], &[path(0, 512)], "position 512");
        check(&[1], &[path(64, 0)], "64 pages");
        check(&[1, 2], &[path(1, 3), path(1, 3)], "twice");
        check(&[1, 2], &[path(1, 3)], "2 tokens");
        assert!(
            llama
                .forward(&Step { tokens: &[], positions: &[], slots: &[], work: &Default::default() }, &[], &mut vec![])
                .is_ok()
        );
    }

    /// The folder of shared cases, or `None` with a note.
    fn cases() -> Option<PathBuf> {
        crate::base::testing::shared("llama").map(|s| s.join("cases"))
    }

    #[test]
    fn the_tiny_model_gives_the_reference_logits_in_all_forms() {
        let Some(cases) = cases() else { return };
        let text = std::fs::read(cases.join("tiny/expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let prompt: Vec<u32> = serde_json::from_value(expected["prompt"].clone()).unwrap();
        for (name, weights) in [
            ("untied.gguf", read_gguf(&cases.join("tiny/untied.gguf"))),
            ("tied gguf", read_gguf(&cases.join("A/05_tied_no_output.gguf"))),
            ("folder", read_folder(&cases.join("tiny/hf"))),
            ("sharded folder", read_folder(&cases.join("tiny/hf_sharded"))),
        ] {
            for parts in [&[64][..], &[40, 24], &[1, 63], &[63, 1], &[8, 56]] {
                let logits = sequence(&mut llama(&weights, options(Activations::F32)), &prompt, parts);
                for (key, row) in [("last_top3", &logits[63]), ("first8_last_top3", &logits[7])] {
                    let top: Vec<(usize, f64)> = serde_json::from_value(expected["plain"][key].clone()).unwrap();
                    for (id, value) in top {
                        let error = (row[id] as f64 - value).abs();
                        assert!(error < 1e-2, "{name} {parts:?} {key}: token {id} is {}, not {value}", row[id]);
                    }
                }
            }
        }
    }

    fn log_probability(logits: &[f32], id: usize) -> f64 {
        let most = logits.iter().copied().fold(f32::MIN, f32::max) as f64;
        let total: f64 = logits.iter().map(|&l| (l as f64 - most).exp()).sum();
        logits[id] as f64 - most - total.ln()
    }

    #[test]
    fn the_default_model_gives_the_reference_probabilities_and_texts() {
        let Some(cases) = cases() else { return };
        let Some(model) = crate::base::testing::real_model("llama") else { return };
        let text = std::fs::read(cases.join("reference/smollm2.json")).unwrap();
        let reference: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let weights = read_gguf(&model);
        for (activations, kv, most, mean, margin) in
            [(Activations::F32, KvNumber::F16, 0.02, 0.005, 0.05), (Activations::Int8, KvNumber::F16, 0.6, 0.1, 0.5)]
        {
            let options = CpuOptions { kv, ..options(activations) };
            let mut errors = Vec::new();
            for prompt in reference["prompts"].as_array().unwrap() {
                let list = |key: &str| -> Vec<f64> { serde_json::from_value(prompt[key].clone()).unwrap() };
                let ids: Vec<u32> = list("ids").iter().map(|&i| i as u32).collect();
                let greedy: Vec<u32> = list("greedy_ids").iter().map(|&i| i as u32).collect();
                let mut llama = llama(&weights, options);
                let mut logits = sequence(&mut llama, &ids, &[ids.len()]);
                for (i, expected) in list("prompt_logprobs").into_iter().enumerate() {
                    errors.push((log_probability(&logits[i], ids[i + 1] as usize) - expected).abs());
                }
                let next = logits.pop().unwrap();
                let top: Vec<(usize, f64)> = serde_json::from_value(prompt["next_top5_logprobs"].clone()).unwrap();
                for (id, expected) in top {
                    errors.push((log_probability(&next, id) - expected).abs());
                }
                // The reference's own text, forced: each step must agree where the reference is sure.
                let all: Vec<u32> = ids.iter().chain(&greedy).copied().collect();
                let mut forced = self::llama(&weights, options);
                let logits = sequence(&mut forced, &all, &[all.len()]);
                for (i, (&id, sure)) in greedy.iter().zip(list("greedy_margin_logits")).enumerate() {
                    let row = &logits[ids.len() - 1 + i];
                    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
                    assert!(best == id as usize || sure <= margin, "{activations:?} {}: step {i}", prompt["prompt"]);
                }
            }
            let worst = errors.iter().copied().fold(0.0, f64::max);
            let average = errors.iter().sum::<f64>() / errors.len() as f64;
            println!("{activations:?}: log-probabilities differ by {worst:.4} at most, {average:.4} on average");
            assert!(worst <= most && average <= mean, "{activations:?}: {worst} at most, {average} on average");
        }
    }
}
