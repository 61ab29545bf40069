//! Which lanes have rows in a step, and how many: those that decode first, then prompts, then drafts of those that decode.

use super::Worker;
use crate::engine::batch::LaneId;
use crate::engine::job::{Context, Job, Lane, Role, Work};
use crate::engine::speculate::placed::Placed;
use crate::engine::speculate::{Load, MOST_NODES};

impl Worker {
    /// Rows for as many lanes as fit.
    pub(super) fn schedule(&mut self) {
        self.batch.clear();
        for job in &mut self.jobs {
            for lane in &mut job.lanes {
                lane.in_step = false;
            }
        }
        for single in [true, false] {
            let mut rows = self.limits.step_rows;
            if !single && !self.batch.is_empty() {
                rows = self.batch.len() + self.limits.mixed_rows;
            }
            for job in 0..self.jobs.len() {
                for lane in 0..self.jobs[job].lanes.len() {
                    let id = LaneId { job, lane };
                    let left = rows.saturating_sub(self.batch.len());
                    if left > 0 && self.is_ready(id) && (self.todo(id) == 1) == single {
                        self.bring_on(id, left);
                    }
                }
            }
        }
    }

    /// Drafts for lanes that decode, as far as more rows make tokens come faster. Lanes that share a row share its draft
    /// too: the others find its tokens in the tree.
    pub(super) fn draft(&mut self) {
        let mut load = Load::new(self.batch.len(), self.llama.device().row_cost());
        let first = |&(at, (wanted, _)): &(usize, &(usize, LaneId))| {
            self.batch.wanting[..at].iter().all(|(before, _)| before != wanted)
        };
        let lanes: Vec<LaneId> =
            self.batch.wanting.iter().enumerate().filter(first).map(|(_, &(_, lane))| lane).collect();
        for id in lanes {
            let most = MOST_NODES.min(self.limits.step_rows.saturating_sub(self.batch.len()));
            let Job { lanes, work, .. } = &mut self.jobs[id.job];
            let Lane { path, role, branch, usage, .. } = &mut lanes[id.lane];
            let (Work::Samples(samples), Role::Sample(sample), Some(branch)) = (work, role, *branch) else { continue };
            let context = Context {
                tree: &mut self.tree,
                holds: &mut self.holds,
                vocab: &self.vocab,
                limit: self.limits.context,
            };
            let draft = samples.draft(sample, path, &mut load, most, &context);
            if draft.is_empty() {
                continue;
            }
            let placed = Placed::place(&mut self.tree, &mut self.batch, branch, &draft);
            usage.drafts += u64::from(!placed.is_empty());
            usage.drafted += placed.len() as u64;
            // Until they are accepted.
            usage.scored += placed.len() as u64;
            self.drafts.push((id, placed));
        }
    }

    /// Whether a lane may have rows in this step: nodes of given texts wait for their prompt.
    pub(super) fn is_ready(&self, id: LaneId) -> bool {
        let job = &self.jobs[id.job];
        let lane = &job.lanes[id.lane];
        let prompt_there =
            id.lane == 0 || job.started || matches!(job.work, Work::Samples(_)) || self.todo_of(&job.lanes[0]) == 0;
        !lane.done && !lane.parked && !lane.in_step && prompt_there
    }

    fn todo(&self, id: LaneId) -> usize {
        self.todo_of(&self.jobs[id.job].lanes[id.lane])
    }

    /// Tokens of the path that its branch does not have yet.
    fn todo_of(&self, lane: &Lane) -> usize {
        lane.path.len() - lane.branch.map_or(0, |branch| self.tree.len(branch))
    }

    /// Follows the lane's path in the tree and adds up to `rows` rows to the step. False: no room.
    pub(super) fn bring_on(&mut self, id: LaneId, rows: usize) -> bool {
        let job = &mut self.jobs[id.job];
        let from_prompt = (id.lane > 0).then(|| job.lanes[0].branch).flatten();
        let lane = &mut job.lanes[id.lane];
        let branch = *lane.branch.get_or_insert_with(|| match from_prompt {
            Some(prompt) if matches!(lane.role, Role::Node(_)) => self.tree.fork(prompt),
            _ => self.tree.open(),
        });
        let mut len = self.tree.len(branch);
        let found = self.tree.advance(branch, &lane.path[len..]);
        len += found;
        if id.lane == 0 && !job.started {
            self.meter.looked_up(if job.looked_up { 0 } else { lane.path.len() }, found);
            job.looked_up = true;
        }
        let path_len = lane.path.len();
        if len == path_len {
            // All of it is there. Its logits are not: they come from the row that writes the last token.
            let slot = self.tree.slots(branch)[len - 1];
            let row = self.batch.writer(slot).unwrap_or_else(|| {
                self.batch.slots.push(slot);
                self.batch.push(branch, len - 1, &lane.path[len - 1..]);
                lane.count(1, true);
                self.batch.len() - 1
            });
            lane.in_step = true;
            self.batch.want(row, id);
            return true;
        }
        let chunk = rows.min(path_len - len);
        while self
            .tree
            .append(branch, &self.jobs[id.job].lanes[id.lane].path[len..len + chunk], &mut self.batch.slots)
            .is_err()
        {
            if !self.give_way_to(id) {
                return false;
            }
        }
        let lane = &mut self.jobs[id.job].lanes[id.lane];
        self.batch.push(branch, len, &lane.path[len..len + chunk]);
        lane.in_step = true;
        let last = len + chunk == path_len;
        lane.count(chunk, last);
        if last {
            self.batch.want(self.batch.len() - 1, id);
        }
        true
    }
}
