//! Every method and every table of kernels of this machine against the float64 reference: `totara doctor --selftest`.

pub mod growing;

use super::contender::Contender;
use super::sample::{Number, Sample, largest_difference};
use super::{Method, Parallel, QueryRow};
use crate::base::{Error, Result};
use crate::device::cpu::attend::kernels::{self, Kernels};
use crate::device::cpu::attend::{Heads, serial};
use crate::kv::BranchId;

/// One line of the selftest's table.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    pub method: Method,
    pub kernels: &'static str,
    pub shape: String,
    /// Largest difference from the reference; NaN where a number came out as NaN.
    pub max_error: f64,
    pub ok: bool,
}

const HEAD_SIZES: [usize; 4] = [64, 80, 96, 128];
/// Query and K/V heads: groups of 1, 3, 4 and 8.
const HEADS: [(usize, usize); 4] = [(3, 3), (9, 3), (8, 2), (8, 1)];

/// Runs all checks. With `fault`, one loop of the portable kernels is wrong: a selftest must be able to fail.
pub fn run(fault: bool) -> Result<Vec<Check>> {
    let tables = if fault { kernels::one_faulty() } else { kernels::available() };
    let mut checks = Vec::new();
    for head_size in HEAD_SIZES {
        for (heads, kv_heads) in HEADS {
            for number in [Number::F16, Number::F32] {
                let (sample, rows) = tree(Heads { heads, kv_heads, head_size }, number)?;
                let q = sample.queries(&rows);
                let truth: Vec<f64> = rows.iter().flat_map(|row| sample.reference(row)).collect();
                for table in &tables {
                    for method in Method::ALL {
                        checks.push(check(method, table, &sample, &rows, (&q, &truth))?);
                    }
                }
            }
        }
    }
    Ok(checks)
}

/// What a number of a result may be off by.
pub fn tolerance(table: &'static Kernels, number: Number) -> f64 {
    match number {
        Number::F16 => table.tolerance,
        Number::F32 => table.of_f32().tolerance,
    }
}

fn check(
    method: Method,
    table: &'static Kernels,
    sample: &Sample,
    rows: &[QueryRow],
    (q, truth): (&[f32], &[f64]),
) -> Result<Check> {
    let Heads { heads, kv_heads, head_size } = sample.heads;
    let parallel = Parallel { threads: 2, kv_heads, group: sample.heads.group() };
    let mut contender = Contender::new(method, table, sample, rows, parallel)?;
    let mut out = vec![f32::NAN; q.len()];
    let arena = contender.arena(sample).clone();
    contender.run(&arena, q, &mut out, &serial);
    let max_error = largest_difference(&out, truth);
    let shape = format!("{heads}/{kv_heads} heads of {head_size}, {}", sample.number.name());
    Ok(Check { method, kernels: table.name, shape, max_error, ok: max_error <= tolerance(table, sample.number) })
}

/// A prompt over a block's end, a fork in mid-page, an empty fork, a chunk of a prompt and a token tree: all in one step.
fn tree(heads: Heads, number: Number) -> Result<(Sample, Vec<QueryRow>)> {
    let mut sample = Sample::new(64, heads, number);
    let append = |sample: &mut Sample, b: BranchId, first: u32, n: u32| {
        let ids: Vec<u32> = (first..first + n).collect();
        sample.append(b, &ids).map_err(|e| Error::fault(e.to_string()))
    };
    let prompt = sample.tree.open();
    append(&mut sample, prompt, 0, 290)?;
    let a = sample.tree.fork(prompt);
    append(&mut sample, a, 1000, 21)?;
    let b = sample.tree.fork(prompt);
    append(&mut sample, b, 2000, 70)?;
    let draft = sample.tree.fork(b);
    append(&mut sample, draft, 3000, 1)?;
    let other = sample.tree.fork(b);
    append(&mut sample, other, 3100, 2)?;
    let lone = sample.tree.open();
    append(&mut sample, lone, 5000, 1)?;
    let mut rows: Vec<QueryRow> =
        [(prompt, 289), (a, 310), (b, 359), (draft, 360), (other, 360), (other, 361), (lone, 0)]
            .map(|(branch, position)| QueryRow { branch, position })
            .to_vec();
    rows.extend((300..310).map(|position| QueryRow { branch: a, position }));
    Ok((sample, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_methods_pass_and_a_fault_in_one_kernel_is_found() {
        let checks = run(false).unwrap();
        let shapes = HEAD_SIZES.len() * HEADS.len() * 2;
        assert_eq!(checks.len(), shapes * kernels::available().len() * Method::ALL.len());
        for c in &checks {
            assert!(c.ok, "{c:?}");
        }
        for c in run(true).unwrap() {
            assert_eq!(c.ok, c.kernels != "portable", "{c:?}");
        }
    }
}
