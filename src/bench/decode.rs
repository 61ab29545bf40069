//! `totara bench decode`: how fast branches on a shared prompt grow, and where the time goes.

use crate::base::Result;
use crate::base::size::peak_bytes;
use crate::engine::measure::{self, Measured, Spec, Split};
use crate::lm::engine::{EngineOptions, Loaded, Sample, load};
use crate::model::Model;
use serde::Serialize;
use std::fmt;

/// The figures of one run; serialises to the contract's JSON line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodeReport {
    /// Tokens.
    pub prompt: usize,
    pub branches: usize,
    /// Of all branches together.
    pub decode_tokens_per_s: f64,
    pub prefill_tokens_per_s: f64,
    /// Most memory this process ever held; `null` where the system does not tell.
    pub peak_bytes: Option<u64>,
    pub model: String,
    pub device: String,
    pub method: String,
    /// Tokens of its own that each branch had before the first measured step.
    pub own: usize,
    pub steps: usize,
    pub branch_tokens_per_s: f64,
    pub step_ms: f64,
    /// Shares of a step, in milliseconds.
    pub attention_ms: f64,
    pub products_ms: f64,
    pub plan_ms: f64,
    pub host_ms: f64,
    pub rest_ms: f64,
    /// A step against the same step without attention: the most that faster attention could give.
    pub attention_bound: f64,
    /// K/V bytes the last step read.
    pub kv_bytes_per_step: u64,
    /// With `--speculate`: steps with a draft, drafted tokens, accepted ones, and the tokens such a step brought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
}

/// How drafts did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Speculation {
    /// Branches' steps with a draft.
    pub drafts: usize,
    pub drafted: usize,
    pub accepted: usize,
    /// Tokens that a branch's step with a draft brought; `null` where there was none.
    pub accepted_length: Option<f64>,
}

/// Loads a model with room for the spec and measures. `tick` hears how many tokens are done, of how many.
pub fn decode(
    model: Model,
    options: &EngineOptions,
    spec: &Spec,
    tick: &mut dyn FnMut(usize, usize),
) -> Result<DecodeReport> {
    let name = model.info.name.clone();
    let sample = Sample::of(&model, options)?;
    let Loaded { mut llama, limits, device, .. } = load(model.weights, options, sample.as_ref())?;
    let measured = measure::decode(&mut llama, &limits, spec, tick)?;
    let mut report = report(name, device, options.method.to_string(), spec, &measured);
    let Measured { drafts, drafted, accepted, .. } = measured;
    report.speculation = options.speculate.then(|| Speculation {
        drafts,
        drafted,
        accepted,
        accepted_length: (drafts > 0).then(|| (accepted + drafts) as f64 / drafts as f64),
    });
    Ok(report)
}

fn report(model: String, device: String, method: String, spec: &Spec, measured: &Measured) -> DecodeReport {
    let Measured { prefill, prefill_tokens, decode, decode_tokens, decode_steps, kv_bytes_per_step, .. } = *measured;
    let Split { total, attention, products, plan, host } = decode;
    let step = |seconds: f64| seconds * 1e3 / decode_steps.max(1) as f64;
    let decode_tokens_per_s = decode_tokens as f64 / total;
    DecodeReport {
        prompt: spec.prompt,
        branches: spec.branches,
        decode_tokens_per_s,
        prefill_tokens_per_s: prefill_tokens as f64 / prefill.total,
        peak_bytes: peak_bytes(),
        model,
        device,
        method,
        own: spec.own,
        steps: spec.steps,
        branch_tokens_per_s: decode_tokens_per_s / spec.branches as f64,
        step_ms: step(total),
        attention_ms: step(attention),
        products_ms: step(products),
        plan_ms: step(plan),
        host_ms: step(host),
        rest_ms: step(decode.rest()),
        attention_bound: total / (total - attention),
        kv_bytes_per_step,
        speculation: None,
    }
}

impl DecodeReport {
    /// The head of the table whose rows are [`Display`](fmt::Display).
    pub const HEAD: &'static str = "  prompt branches    own |  tok/s  tok/s/branch prefill/s |  step ms  attention  products   plan   host   rest | peak MiB";
}

impl fmt::Display for DecodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peak = self.peak_bytes.map_or("-".into(), |bytes| format!("{:.0}", bytes as f64 / f64::from(1 << 20)));
        write!(
            f,
            "{:>8} {:>8} {:>6} | {:>6.1} {:>13.1} {:>9.1} | {:>8.2} {:>10.2} {:>9.2} {:>6.2} {:>6.2} {:>6.2} | {peak:>8}",
            self.prompt,
            self.branches,
            self.own,
            self.decode_tokens_per_s,
            self.branch_tokens_per_s,
            self.prefill_tokens_per_s,
            self.step_ms,
            self.attention_ms,
            self.products_ms,
            self.plan_ms,
            self.host_ms,
            self.rest_ms,
        )?;
        match self.speculation {
            Some(Speculation { drafted, accepted, accepted_length: Some(length), .. }) => {
                write!(f, "\n{:>23}   {accepted} of {drafted} drafted tokens accepted, {length:.2} tokens a draft", "")
            }
            Some(_) => write!(f, "\n{:>23}   nothing was drafted", ""),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_step_add_up_and_the_contracts_fields_are_there() {
        let decode = Split { total: 2.0, attention: 0.5, products: 1.0, plan: 0.1, host: 0.2 };
        let prefill = Split { total: 0.5, ..Split::default() };
        let measured = Measured {
            prefill,
            prefill_tokens: 100,
            decode,
            decode_tokens: 40,
            decode_steps: 10,
            kv_bytes_per_step: 7,
            ..Measured::default()
        };
        let spec = Spec { prompt: 100, branches: 4, own: 3, steps: 10, seed: 0 };
        let report = report("m".into(), "d".into(), "auto".into(), &spec, &measured);
        assert_eq!(
            (report.decode_tokens_per_s, report.branch_tokens_per_s, report.prefill_tokens_per_s),
            (20.0, 5.0, 200.0)
        );
        let sum = report.attention_ms + report.products_ms + report.plan_ms + report.host_ms + report.rest_ms;
        assert!((sum - report.step_ms).abs() < 1e-9);
        assert!((report.attention_bound - 4.0 / 3.0).abs() < 1e-9);
        let json = serde_json::to_value(&report).unwrap();
        for field in ["prompt", "branches", "decode_tokens_per_s", "prefill_tokens_per_s", "peak_bytes"] {
            assert!(json.get(field).is_some(), "{field}");
        }
        let columns = |line: &str| line.split('|').map(str::len).collect::<Vec<_>>();
        assert_eq!(columns(DecodeReport::HEAD), columns(&report.to_string()));
    }
}
