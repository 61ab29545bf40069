//! The planner that follows a run gives what a new one gives, and does follow it.

use super::*;
use crate::attention::tests::check_work;
use crate::base::rng;
use crate::kv::BranchId;
use proptest::prelude::*;
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// A run of a search on one tree, and the planner that follows it.
struct Run {
    tree: TokenTree,
    branches: Vec<BranchId>,
    planner: Planner,
    random: ChaCha8Rng,
    token: u32,
    followed: usize,
    steps: usize,
}

impl Run {
    fn new(seed: u64, method: Method, parallel: Parallel, leaves: usize, first: usize, longest: usize) -> Self {
        let mut tree = TokenTree::new(30_000);
        let planner = Planner::with_parallel(method, parallel);
        let mut random = rng::stream(seed, "run", &[]);
        let root = tree.open();
        tree.append(root, &vec![0; first], &mut Vec::new()).unwrap();
        let mut run =
            Self { tree, branches: vec![root], planner, token: 1, followed: 0, steps: 0, random: random.clone() };
        while run.branches.len() < leaves {
            // Chains, stars, combs and whatever lies between; a second root now and then.
            let from = match seed % 4 {
                0 => 0,
                1 => run.branches.len() - 1,
                _ => random.random_range(0..run.branches.len()),
            };
            let new = if random.random_range(0..20) == 0 { run.tree.open() } else { run.tree.fork(run.branches[from]) };
            for b in [new, run.branches[from]] {
                let tokens = random.random_range(1..=longest);
                run.append(b, tokens);
            }
            run.branches.push(new);
        }
        run.random = random;
        run
    }

    fn append(&mut self, b: BranchId, tokens: usize) {
        let ids: Vec<u32> = (0..tokens as u32).map(|i| self.token + i).collect();
        self.token += tokens as u32;
        self.tree.append(b, &ids, &mut Vec::new()).unwrap();
    }

    fn any(&mut self) -> usize {
        self.random.random_range(0..self.branches.len())
    }

    /// What a search does to its tree between two steps.
    fn change(&mut self) {
        let at = self.any();
        let b = self.branches[at];
        let len = self.tree.len(b);
        match self.random.random_range(0..9) {
            0 => self.branches.push(self.tree.fork(b)),
            // Between others, off the path somewhere, and several at once.
            1 => self.branches.insert(at, self.tree.fork(b)),
            2 => {
                for _ in 0..3 {
                    let new = self.tree.fork(b);
                    let keep = self.random.random_range(0..=len);
                    self.tree.truncate(new, keep);
                    self.branches.push(new);
                }
            }
            3 if self.branches.len() > 1 => {
                let keep = self.random.random_range(0..=len);
                self.tree.drop_branch(self.branches.swap_remove(at), keep);
            }
            4 if self.branches.len() > 1 => self.tree.release(self.branches.remove(at)),
            // A branch goes back and on another way; one goes along what is there.
            5 => {
                let keep = len - self.random.random_range(0..=len.min(5));
                self.tree.truncate(b, keep);
            }
            6 => {
                let path = self.tree.tokens(b);
                let new = self.tree.open();
                let until = self.random.random_range(0..=len);
                self.tree.advance(new, &path[..until]);
                self.branches.push(new);
            }
            7 => self.tree.join(b),
            _ => self.branches.shuffle(&mut self.random),
        }
    }

    /// A decode step of all branches; where `odd`, of some only now and then, or with rows of a prompt's part.
    fn step(&mut self, odd: bool) {
        let some = odd && self.random.random_range(0..12) == 0;
        let branches: Vec<BranchId> =
            self.branches.iter().copied().filter(|_| !some || self.random.random_range(0..8) > 0).collect();
        for &b in &branches {
            self.append(b, 1);
        }
        let row = |&branch: &BranchId| QueryRow { branch, position: self.tree.len(branch) as u32 - 1 };
        let mut rows: Vec<QueryRow> = branches.iter().map(row).collect();
        if odd
            && self.random.random_range(0..20) == 0
            && let Some(&QueryRow { branch, position }) = rows.first()
        {
            rows.splice(0..0, (position.saturating_sub(3)..position).map(|position| QueryRow { branch, position }));
        }
        // New branches, each with one that goes on from its end in the same step, as drafts do.
        let mut drafts = Vec::new();
        if odd && self.random.random_range(0..4) == 0 {
            for _ in 0..3 {
                let at = self.any();
                let from = self.tree.fork(self.branches[at]);
                let keep = self.random.random_range(0..=self.tree.len(from));
                self.tree.truncate(from, keep);
                self.append(from, 1);
                let draft = self.tree.fork(from);
                self.append(draft, 1);
                for branch in [from, draft] {
                    rows.push(QueryRow { branch, position: self.tree.len(branch) as u32 - 1 });
                    drafts.push(branch);
                }
            }
        }
        let Self { planner, tree, .. } = self;
        self.followed += usize::from(planner.clone().follow(tree, &rows));
        self.steps += 1;
        planner.plan(tree, &rows);
        let (method, parallel) = (planner.method, planner.parallel);
        check_work(planner.work(), &rows, tree, method, parallel.kv_heads);
        let mut new = Planner::with_parallel(method, parallel);
        assert_eq!(planner.work(), new.plan(tree, &rows), "{method}, step {}", self.steps);
        if planner.follow.is_ready() {
            assert_eq!((&planner.nodes, &planner.tails), (&new.nodes, &new.tails));
        }
        drafts.into_iter().for_each(|branch| self.tree.release(branch));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// After any changes of the tree and the batch, all steps.
    #[test]
    fn following_a_run_equals_planning_anew(
        seed in any::<u64>(),
        method in prop::sample::select(Method::LIVE.to_vec()),
        (threads, kv_heads) in (1..5usize, 1..3usize),
        leaves in prop_oneof![3 => 1..12usize, 1 => 12..80usize],
        first in prop::sample::select(vec![1, 15, 250, 256, 700]),
        longest in prop::sample::select(vec![1, 20, 200]),
    ) {
        let mut run = Run::new(seed, method, Parallel { threads, kv_heads, group: 3 }, leaves, first, longest);
        for _ in 0..40 {
            for _ in 0..run.random.random_range(0..3) {
                run.change();
            }
            run.step(true);
        }
    }
}

/// On a wide tree a fork, a pruning and a branch that goes another way do not make the whole plan anew.
#[test]
fn small_changes_are_followed() {
    for method in Method::LIVE {
        let mut run = Run::new(3, method, Parallel::default(), 100, 300, 30);
        run.step(false);
        run.followed = 0;
        for step in 0..30 {
            let at = run.any();
            let b = run.branches[at];
            match step % 3 {
                0 => run.branches.push(run.tree.fork(b)),
                1 => run.tree.drop_branch(run.branches.swap_remove(at), 0),
                _ => run.tree.truncate(b, run.tree.len(b) - 1),
            }
            run.step(false);
        }
        // Steps in which many rows begin a block are planned anew, with `auto` also those after it split units by rows.
        let least = if method == Method::Auto { 15 } else { 24 };
        assert!(run.followed >= least, "{method}: {} of 30", run.followed);
    }
}
