//! The Llama forward pass: the order of the device's operations, nothing else.

use crate::base::Result;
use crate::device::head::{HeadRow, Said};
use crate::device::speculation::Fetch;
use crate::device::{Device, Step};
use crate::kv::{PageId, Slot};

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

    /// See [`Device::refetch`].
    pub fn refetch(&mut self, tier: Option<(u64, Fetch)>, slots: &[Slot]) -> Result<()> {
        self.device.refetch(tier, slots)
    }

    /// Pages whose tokens are gone since the last step.
    pub fn freed(&mut self, pages: &[PageId]) {
        self.device.freed(pages);
    }

    /// Pages that rows will see soon, and pages that none will see for a while.
    pub fn expect(&mut self, soon: &[PageId], later: &[PageId]) {
        self.device.expect(soon, later);
    }

    /// Waits for all steps given so far.
    pub fn finish(&mut self) -> Result<()> {
        self.device.finish()
    }

    /// All logits of the row that was number `wanted` of the last step, where only a glance of it was given.
    pub fn fetch(&mut self, wanted: usize, out: &mut Vec<f32>) -> Result<()> {
        self.device.fetch(wanted, out)
    }

    /// Runs one packed step: writes K and V of every row at its slot, and appends what is wanted of each row's logits to
    /// `out`. A step without rows does nothing.
    pub fn forward(&mut self, step: &Step<'_>, wanted: &[HeadRow<'_>], out: &mut Vec<Said>) -> Result<()> {
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
mod offloaded;

#[cfg(test)]
mod tests {
    use super::super::reference::{self, Session, random_weights, read_folder, read_gguf, small_shape};
    use super::*;
    use crate::attention::{Method, QueryRow};
    use crate::base::rng::stream;
    use crate::device::attend::AttendWork;
    use crate::device::cpu::arena::KvNumber;
    use crate::device::cpu::simd::Simd;
    use crate::device::cpu::{Activations, CpuOptions};
    use crate::device::head::{Ask, Want};
    use crate::device::weight::Weights;
    use crate::device::{RopeLayout, Shape};
    use candle_core::quantized::GgmlDType;
    use rand::Rng;
    use std::path::PathBuf;

    const EXACT: CpuOptions =
        CpuOptions { threads: 2, activations: Activations::F32, pages: 64, kv: KvNumber::F32, simd: Simd::PORTABLE };

    fn options(activations: Activations) -> CpuOptions {
        CpuOptions { activations, simd: Simd::best(), ..EXACT }
    }

    fn session(weights: &Weights, options: CpuOptions) -> Session {
        Session::new(weights, options, Method::Auto)
    }

    fn worst(found: &[Vec<f32>], expected: &[Vec<f64>]) -> f64 {
        let mut worst = 0f64;
        for (found, expected) in found.iter().zip(expected) {
            for (&found, expected) in found.iter().zip(expected) {
                let error = (found as f64 - expected).abs();
                worst = if worst.is_nan() || worst > error { worst } else { error };
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
                let found = session(&weights, options(Activations::F32)).sequence(&tokens, parts);
                let error = worst(&found, &expected);
                assert!(error < 2e-3, "{layout:?} {kinds:?} in parts {parts:?}: {error}");
                let coarse = session(&weights, options(Activations::Int8)).sequence(&tokens, parts);
                let error = worst(&coarse, &expected);
                assert!(error < 0.5, "{layout:?} {kinds:?} int8 in parts {parts:?}: {error}");
            }
        }
    }

    #[test]
    fn the_leaves_of_a_random_tree_equal_their_paths_read_alone() {
        let shape = small_shape(RopeLayout::Interleaved);
        let weights = random_weights(&shape, &[GgmlDType::Q8_0, GgmlDType::Q4_1], true, 6);
        for (activations, bound) in [(Activations::F32, 2e-3), (Activations::Int8, 0.5)] {
            let mut random = stream(9, "tree", &[]);
            let mut grown = Session::new(&weights, options(activations), Method::Flatten);
            // Branches with the tokens and the logits of their whole paths.
            let root = grown.tree.open();
            let stem = tokens(&shape, 37, 2);
            let logits = grown.step(&[(root, &stem)]);
            let mut branches = vec![(root, stem, logits)];
            for round in 0..6u64 {
                for _ in 0..2 {
                    let (from, ids, logits) = branches[random.random_range(0..branches.len())].clone();
                    branches.push((grown.tree.fork(from), ids, logits));
                }
                // Some of them grow, each by a few tokens, in one step.
                let mut own = Vec::new();
                for (i, (branch, ..)) in branches.iter().enumerate() {
                    if random.random_range(0..3) > 0 {
                        own.push((i, *branch, tokens(&shape, random.random_range(1..=9usize), 100 * round + i as u64)));
                    }
                }
                let parts: Vec<_> = own.iter().map(|(_, branch, ids)| (*branch, &ids[..])).collect();
                let mut logits = grown.step(&parts).into_iter();
                for (i, _, ids) in &own {
                    branches[*i].1.extend(ids);
                    branches[*i].2.extend(logits.by_ref().take(ids.len()));
                }
                grown.tree.check();
            }
            for (i, (_, tokens, logits)) in branches.iter().enumerate() {
                let mut alone = session(&weights, CpuOptions { threads: 1, ..options(activations) });
                // Bit for bit: a row depends on its own path alone.
                assert!(*logits == alone.sequence(tokens, &[tokens.len()]), "{activations:?} branch {i}");
                let error = worst(logits, &reference::logits(&weights, tokens));
                assert!(error < bound, "{activations:?} branch {i}: {error}");
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
                let expected = session(&weights, base).sequence(&tokens, &[61]);
                for simd in Simd::available() {
                    for threads in [1, 2, 3] {
                        let options = CpuOptions { simd, threads, ..base };
                        let found = session(&weights, options).sequence(&tokens, &[20, 41]);
                        assert!(found == expected, "{simd} {threads} threads {activations:?} {kv:?}");
                    }
                }
            }
        }
    }

    /// Five tokens on one page, as a step.
    fn five(session: &mut Session) -> ([u32; 5], Vec<Slot>, AttendWork) {
        let branch = session.tree.open();
        let mut slots = Vec::new();
        session.tree.append(branch, &[3, 1, 4, 1, 5], &mut slots).unwrap();
        let rows: Vec<_> = (0..5).map(|position| QueryRow { branch, position }).collect();
        ([3, 1, 4, 1, 5], slots, session.planner.plan(&session.tree, &rows).clone())
    }

    #[test]
    fn allowed_tokens_get_the_same_logits_as_in_the_whole_vocabulary() {
        let shape = small_shape(RopeLayout::Halves);
        let weights = random_weights(&shape, &[GgmlDType::Q8_0], true, 8);
        for activations in [Activations::F32, Activations::Int8] {
            let mut session = session(&weights, options(activations));
            let (tokens, slots, work) = five(&mut session);
            let step = Step { tokens: &tokens, positions: &[0, 1, 2, 3, 4], slots: &slots, work: &work, selects: &[] };
            let everything: Vec<_> = (0..5).map(HeadRow::all).collect();
            let mut said = Vec::new();
            session.llama.forward(&step, &everything, &mut said).unwrap();
            let all: Vec<&[f32]> = said.iter().map(|said| said.logits().unwrap()).collect();
            let (some, many) = ([69u32, 0, 3, 3, 17], (0..70).rev().collect::<Vec<u32>>());
            let wanted = [
                HeadRow { row: 3, want: Want::Only(&some) },
                HeadRow::all(1),
                HeadRow { row: 4, want: Want::Only(&many) },
                HeadRow { row: 0, want: Want::Only(&[]) },
                HeadRow { row: 2, want: Want::Glance(Ask::PLAIN) },
            ];
            let mut out = vec![Said::Logits(vec![1.0])];
            session.llama.forward(&step, &wanted, &mut out).unwrap();
            let pick = |row: usize, ids: &[u32]| ids.iter().map(|&id| all[row][id as usize]).collect::<Vec<_>>();
            let expected = vec![vec![1.0], pick(3, &some), all[1].to_vec(), pick(4, &many), vec![], all[2].to_vec()];
            assert!(out == expected.into_iter().map(Said::Logits).collect::<Vec<_>>());
            assert!(session.llama.fetch(4, &mut Vec::new()).is_err(), "nothing is kept");
        }
    }

    #[test]
    fn steps_that_cannot_be_run_are_refused() {
        let shape = small_shape(RopeLayout::Halves);
        let weights = random_weights(&shape, &[GgmlDType::F32], true, 8);
        let mut session = session(&weights, options(Activations::F32));
        let (tokens, slots, work) = five(&mut session);
        let positions = [0, 1, 2, 3, 4];
        let mut check = |step: Step<'_>, wanted: &[HeadRow<'_>], expected: &str| {
            let error = session.llama.forward(&step, wanted, &mut Vec::new()).unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        };
        let step = || Step { tokens: &tokens, positions: &positions, slots: &slots, work: &work, selects: &[] };
        check(Step { tokens: &[3, 1, 70, 1, 5], ..step() }, &[], "token 70");
        check(Step { tokens: &tokens[..4], ..step() }, &[], "4 tokens");
        check(Step { positions: &[0, 1, 2, 3, 512], ..step() }, &[], "position 512");
        let changed = |change: &dyn Fn(&mut Vec<Slot>)| {
            let mut slots = slots.clone();
            change(&mut slots);
            slots
        };
        check(Step { slots: &changed(&|s| s[2].page = PageId(64)), ..step() }, &[], "64 pages");
        check(Step { slots: &changed(&|s| s[2].offset = 3), ..step() }, &[], "offset: 3");
        check(Step { positions: &[0, 1, 1, 3, 4], slots: &changed(&|s| s[2] = s[1]), ..step() }, &[], "twice");
        let changed = |change: &dyn Fn(&mut AttendWork)| {
            let mut work = work.clone();
            change(&mut work);
            work
        };
        check(Step { work: &changed(&|w| w.pages[0] = 64), ..step() }, &[], "page 64");
        check(Step { work: &changed(&|w| w.order[0] = w.order[1]), ..step() }, &[], "every row once");
        check(step(), &[HeadRow::all(5)], "row 5");
        check(step(), &[HeadRow { row: 0, want: Want::Only(&[70]) }], "vocabulary of 70");
        let nothing = Step { tokens: &[], positions: &[], slots: &[], work: &AttendWork::default(), selects: &[] };
        assert!(session.llama.forward(&nothing, &[], &mut Vec::new()).is_ok());
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
                let logits = session(&weights, options(Activations::F32)).sequence(&prompt, parts);
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
                let mut logits = session(&weights, options).sequence(&ids, &[ids.len()]);
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
                let logits = session(&weights, options).sequence(&all, &[all.len()]);
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
