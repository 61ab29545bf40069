use super::filter::{NUCLEUS_SLACK, better};
use super::*;
use crate::base::rng::stream;
use crate::base::testing::shared;
use serde_json::Value;

fn case(name: &str) -> Option<Value> {
    let path = shared(name)?.join("cases/A").join(name);
    Some(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().map_or(f32::NAN, |f| f as f32)).collect()
}

fn pick(settings: Sampling, logits: &[f32]) -> Result<u32> {
    Ok(Sampler::new(&settings)?.pick(&mut Row::of(logits), None, &[], &mut stream(0, "test", &[]))?.token)
}

/// What all filters leave of a whole vocabulary, or of allowed tokens, looking at every one.
fn full(sampler: &Sampler, logits: &[f32], allowed: Option<&[u32]>, text: &[u32]) -> Vec<(u32, f64)> {
    let everything: Vec<u32> = (0..logits.len() as u32).collect();
    let allowed = allowed.unwrap_or(&everything).iter().map(|&id| (id, logits[id as usize]));
    sampler.filter(sampler.scored(allowed, text).unwrap()).unwrap()
}

#[test]
fn cold_temperatures_are_the_argmax_and_nonsense_is_refused() {
    let Some(case) = case("18_sampling.json") else { return };
    let logits = floats(&case["logits"]);
    for setting in case["settings"].as_array().unwrap() {
        let temperature = setting["temperature"].as_f64().map_or(f32::NAN, |t| t as f32);
        let picked = pick(Sampling { temperature, ..Sampling::default() }, &logits);
        if temperature >= 0.0 {
            assert_eq!(picked.unwrap(), 2, "{temperature}");
        } else {
            assert!(picked.unwrap_err().message().contains("temperature"), "{temperature}");
        }
    }
    for temperature in [0.0, 1e-8, 1.0] {
        let settings = Sampling { temperature, ..Sampling::default() };
        assert!(pick(settings, &floats(&case["logits_with_nan"])).is_err(), "{temperature}");
    }
}

#[test]
fn the_nucleus_and_top_k_keep_what_the_cases_list() {
    let Some(case) = case("20_sampling.json") else { return };
    let logits: Vec<f32> = floats(&case["probs"]).iter().map(|p| p.ln()).collect();
    for row in case["cases"].as_array().unwrap() {
        let settings = Sampling {
            temperature: 1.0,
            top_p: row["top_p"].as_f64().map(|p| p as f32),
            top_k: row["top_k"].as_u64().map(|k| k as usize),
            ..Sampling::default()
        };
        let kept = Sampler::new(&settings).unwrap().kept(&mut Row::of(&logits), &[]).unwrap();
        let mut kept: Vec<u64> = kept.shares.iter().map(|&(id, _)| u64::from(id)).collect();
        let mut expected: Vec<u64> = match row["keep"].as_array() {
            Some(ids) => ids.iter().map(|id| id.as_u64().unwrap()).collect(),
            None => vec![3, 0],
        };
        kept.sort_unstable();
        expected.sort_unstable();
        assert_eq!(kept, expected, "{row}");
    }
}

#[test]
fn filters_follow_their_order_and_ties_go_to_the_lowest_id() {
    let logits = [1.0f32, 3.0, 3.0, 2.0, -1.0];
    assert_eq!(pick(Sampling::default(), &logits).unwrap(), 1);
    let kept = |settings: Sampling, allowed: Option<&[u32]>, text: &[u32]| -> Vec<u32> {
        let sampler = Sampler::new(&Sampling { temperature: 1.0, ..settings }).unwrap();
        let kept = full(&sampler, &logits, allowed, text);
        assert!((kept.iter().map(|k| k.1).sum::<f64>() - 1.0).abs() < 1e-12);
        kept.iter().map(|k| k.0).collect()
    };
    assert_eq!(kept(Sampling { top_k: Some(2), ..Sampling::default() }, None, &[]), [1, 2]);
    assert_eq!(kept(Sampling { top_k: Some(2), ..Sampling::default() }, Some(&[0, 3, 4]), &[]), [3, 0]);
    // The penalty comes before top-k: 3 / 2 and -1 * 2.
    let punished = Sampling { top_k: Some(2), repetition_penalty: 2.0, ..Sampling::default() };
    assert_eq!(kept(punished, None, &[1, 2, 4]), [3, 1]);
    assert_eq!(kept(Sampling { min_p: Some(0.3), ..Sampling::default() }, None, &[]), [1, 2, 3]);
    assert_eq!(kept(Sampling { min_p: Some(1.0), top_p: Some(0.0), ..Sampling::default() }, None, &[]), [1]);
}

#[test]
fn draws_follow_the_probabilities() {
    let logits = [0.5f32.ln(), 0.2f32.ln(), 0.3f32.ln()];
    let sampler = Sampler::new(&Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
    let mut counts = [0usize; 3];
    for i in 0..20_000 {
        let pick = sampler.pick(&mut Row::of(&logits), None, &[], &mut stream(7, "test", &[i])).unwrap();
        counts[pick.token as usize] += 1;
    }
    for (count, share) in counts.iter().zip([0.5, 0.2, 0.3]) {
        assert!((*count as f64 / 20_000.0 - share).abs() < 0.02, "{counts:?}");
    }
}

#[test]
fn a_long_tail_is_sorted_only_as_far_as_the_nucleus_needs() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 5000) as f32 * 1e-3).collect();
    let sampler = Sampler::new(&Sampling { temperature: 1.0, top_p: Some(0.9), ..Sampling::default() }).unwrap();
    let kept = sampler.kept(&mut Row::of(&logits), &[]).unwrap().shares;
    assert!(kept.windows(2).all(|w| w[0].1 >= w[1].1));
    let all = Sampler::new(&Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
    let mut all = full(&all, &logits, None, &[]);
    all.sort_by(better);
    let mut sum = 0.0;
    let needed = all
        .iter()
        .take_while(|k| {
            let before = sum;
            sum += k.1;
            before < 0.9 - NUCLEUS_SLACK
        })
        .count();
    assert_eq!(kept.len(), needed);
}

#[test]
fn a_mask_renormalises_its_own_log_probability_only() {
    let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY];
    let pick = |allowed: &[u32]| {
        Sampler::greedy().pick(&mut Row::of(&logits), Some(allowed), &[], &mut stream(0, "test", &[]))
    };
    let one = pick(&[0]).unwrap();
    assert_eq!(one.masked_logprob, 0.0);
    assert!((f64::from(one.logprob) + (1.0 + 1f64.exp() + 2f64.exp()).ln()).abs() < 1e-6);
    assert!(pick(&[3]).is_err());
    assert!(pick(&[]).is_err());
}

/// Random logits: flat, peaked or tied, smaller and larger than what is known of the best.
fn random_logits(random: &mut impl Rng) -> Vec<f32> {
    let (vocab, steep) = (random.random_range(1..700), [0.3f32, 2.0, 9.0][random.random_range(0..3)]);
    let steps = [3.0f32, 40.0, 1e6][random.random_range(0..3)];
    (0..vocab).map(|_| ((random.random::<f32>() * steps).floor() / steps - 0.4) * steep * 3.0).collect()
}

#[test]
fn what_the_best_tokens_tell_is_what_all_of_them_tell() {
    let mut random = stream(3, "best tokens", &[]);
    let (mut short, mut open) = (0, 0);
    for _ in 0..3000 {
        let logits = random_logits(&mut random);
        let vocab = logits.len() as u32;
        let mut one = |of: &[Option<f32>]| of[random.random_range(0..of.len())];
        let (top_p, min_p) =
            (one(&[None, None, Some(0.2), Some(0.9), Some(1.0)]), one(&[None, None, Some(0.05), Some(0.5)]));
        let top_k = one(&[None, None, Some(1.0), Some(40.0), Some(200.0)]).map(|k| k as usize);
        let (temperature, repetition_penalty) =
            (one(&[Some(0.2), Some(1.0), Some(1.9)]), one(&[Some(1.0), Some(1.0), Some(1.4), Some(0.8)]));
        let (temperature, repetition_penalty) = (temperature.unwrap(), repetition_penalty.unwrap());
        let sampler = Sampler::new(&Sampling { temperature, top_k, top_p, min_p, repetition_penalty }).unwrap();
        let text: Vec<u32> = (0..random.random_range(0..5)).map(|_| random.random_range(0..vocab)).collect();
        let mut exact = full(&sampler, &logits, None, &text);
        exact.sort_unstable_by(better);
        let mut row = Row::of(&logits);
        let kept = sampler.kept(&mut row, &text).unwrap();
        (short, open) = (short + usize::from(kept.shares.len() < exact.len()), open + usize::from(kept.rest));
        let mut shares = kept.shares.clone();
        shares.sort_unstable_by(better);
        assert!(kept.rest || shares.len() == exact.len(), "{sampler:?}");
        for (found, exact) in shares.iter().zip(&exact) {
            let near = (found.1 - exact.1).abs() <= 2e-5;
            assert!(found.0 == exact.0 && near, "{found:?} {exact:?} {sampler:?}");
        }
        let best = argmax(&sampler.scored((0..vocab).zip(logits.iter().copied()), &text).unwrap()).unwrap();
        assert_eq!(sampler.best_of(&mut row, &text).unwrap(), best, "{sampler:?}");
    }
    assert!(short > 100 && open == short, "{short} were told by fewer tokens, {open} left others open");
}

#[test]
fn a_draw_beyond_the_best_tokens_has_the_others_probabilities() {
    // The first 128 have half of the probability.
    let logits: Vec<f32> = (0..384).map(|i| if i < 128 { 2f32.ln() } else { 0.0 }).collect();
    let sampler = Sampler::new(&Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
    let kept = sampler.kept(&mut Row::of(&logits), &[]).unwrap();
    assert!(kept.rest && kept.shares.len() == 128);
    let (mut counts, draws) = ([0usize; 4], 40_000);
    for i in 0..draws {
        let pick = sampler.pick(&mut Row::of(&logits), None, &[], &mut stream(8, "test", &[i])).unwrap();
        counts[pick.token as usize / 96] += 1;
    }
    let exact = [96.0 * 2.0, 32.0 * 2.0 + 64.0, 96.0, 96.0].map(|weight| weight / 512.0);
    for (count, exact) in counts.iter().zip(exact) {
        assert!((*count as f64 / draws as f64 - exact).abs() < 0.015, "{counts:?}");
    }
}

#[test]
fn filters_that_cut_nothing_draw_as_no_filter_does() {
    let mut random = stream(11, "no cut", &[]);
    for round in 0..600 {
        let logits = random_logits(&mut random);
        let vocab = logits.len();
        let allowed: Vec<u32> = (0..vocab as u32).filter(|_| random.random_range(0..3) == 0).collect();
        let allowed = (round % 2 == 0 && !allowed.is_empty()).then_some(allowed.as_slice());
        let text: Vec<u32> = (0..random.random_range(0..3)).map(|_| random.random_range(0..vocab as u32)).collect();
        let open = Sampling { temperature: 1.3, repetition_penalty: [1.0, 1.2][round % 3 / 2], ..Sampling::default() };
        let draw = |settings: &Sampling, at: u64| {
            let sampler = Sampler::new(settings).unwrap();
            sampler.pick(&mut Row::of(&logits), allowed, &text, &mut stream(12, "test", &[at])).unwrap()
        };
        for at in 0..8 {
            let expected = draw(&open, at);
            for top_k in [0, allowed.map_or(vocab, <[u32]>::len), vocab, vocab + 1, usize::MAX] {
                let settings = Sampling { top_k: Some(top_k), ..open.clone() };
                assert_eq!(draw(&settings, at), expected, "top-k {top_k} of {vocab}");
            }
            let settings = Sampling { top_p: Some(1.0), min_p: Some(0.0), ..open.clone() };
            assert_eq!(draw(&settings, at), expected);
        }
    }
}
