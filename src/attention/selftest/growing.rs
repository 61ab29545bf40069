//! The steps of a search as a device sees them: prompts that are read, branches that grow, fork and are pruned.

use crate::attention::{Method, Planner, QueryRow};
use crate::base::{Error, Result, rng};
use crate::device::cuda::selftest::graphs::Grown;
use crate::kv::TokenTree;
use rand::Rng;

/// Steps between which a branch forks or is pruned.
const CHANGES: usize = 9;

/// A prompt of so many tokens, then `steps` decode steps of about `branches` branches.
pub fn steps(seed: u64, prompt: usize, branches: usize, steps: usize) -> Result<Vec<Grown>> {
    let mut random = rng::stream(seed, "growing", &[]);
    let mut tree = TokenTree::new((prompt + 3 * branches * steps).div_ceil(crate::kv::PAGE_TOKENS) + 3 * branches);
    let mut planner = Planner::new(Method::Auto);
    let mut grown = Vec::new();
    let fault = |e: crate::kv::NoPages| Error::fault(e.to_string());
    let root = tree.open();
    let mut slots = Vec::new();
    let ids: Vec<u32> = (0..prompt as u32).collect();
    tree.append(root, &ids, &mut slots).map_err(fault)?;
    let rows: Vec<QueryRow> = ids.iter().map(|&position| QueryRow { branch: root, position }).collect();
    grown.push(Grown { work: planner.plan(&tree, &rows).clone(), positions: ids, slots });
    let mut rows = vec![QueryRow { branch: root, position: prompt as u32 - 1 }];
    let mut token = prompt as u32;
    for step in 0..steps {
        // All branches at first, and later one more or one less: few enough kinds of steps that they come again.
        if step == 3 {
            for _ in 1..branches {
                rows.push(QueryRow { branch: tree.fork(root), ..rows[0] });
            }
        } else if step > 3 && step % CHANGES == 0 {
            let at = random.random_range(0..rows.len());
            if rows.len() > branches - branches / 3 && random.random_bool(0.5) {
                tree.drop_branch(rows.swap_remove(at).branch, 0);
            } else {
                rows.push(QueryRow { branch: tree.fork(rows[at].branch), ..rows[at] });
            }
        }
        let mut slots = Vec::new();
        for row in &mut rows {
            token += 1;
            tree.append(row.branch, &[token], &mut slots).map_err(fault)?;
            row.position += 1;
        }
        let positions = rows.iter().map(|row| row.position).collect();
        grown.push(Grown { work: planner.plan(&tree, &rows).clone(), positions, slots });
    }
    Ok(grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grown_trees_fork_and_are_pruned_and_every_row_has_a_place() {
        let grown = steps(1, 50, 4, 120).unwrap();
        let rows: Vec<usize> = grown.iter().map(|step| step.slots.len()).collect();
        assert_eq!((rows[0], rows[1], rows[4]), (50, 1, 4));
        assert!(rows[1..].windows(2).any(|w| w[1] > w[0]) && rows[5..].windows(2).any(|w| w[1] < w[0]), "{rows:?}");
        for step in &grown {
            assert_eq!((step.work.rows(), step.positions.len()), (step.slots.len(), step.slots.len()));
        }
    }
}
