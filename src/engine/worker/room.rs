//! Room for pages where there is none: who gives way, in which order, and what ends when nobody can.

use super::{Worker, new_tree};
use crate::attention::Planner;
use crate::base::Error;
use crate::base::size::Human;
use crate::engine::batch::LaneId;
use crate::engine::job::Context;
use crate::kv::PAGE_TOKENS;

impl Worker {
    pub(super) fn no_room(&self, tokens: usize) -> Error {
        let (pages, bytes) = (self.llama.device().pages(), self.llama.device().page_bytes());
        let needed = tokens.div_ceil(PAGE_TOKENS);
        Error::limit(format!(
            "no K/V memory: a path of {tokens} tokens needs {needed} pages ({}), there are {pages} ({}); raise {}",
            Human((needed * bytes) as u64),
            Human((pages * bytes) as u64),
            self.limits.budget_flag,
        ))
    }

    /// Frees what a lane may take from others. False: nothing more.
    pub(super) fn give_way_to(&mut self, id: LaneId) -> bool {
        let done =
            self.jobs.iter_mut().flat_map(|job| &mut job.lanes).find(|l| l.done && !l.in_step && l.branch.is_some());
        if let Some(branch) = done.and_then(|lane| lane.branch.take()) {
            self.tree.release(branch);
            return true;
        }
        if self.holds.give_way(&mut self.tree) {
            return true;
        }
        for job in (id.job..self.jobs.len()).rev() {
            let oldest = if job == id.job { id.lane + 1 } else { 0 };
            for lane in (oldest..self.jobs[job].lanes.len()).rev() {
                let lane = &mut self.jobs[job].lanes[lane];
                if lane.in_step || lane.branch.is_none_or(|branch| self.tree.is_empty(branch)) {
                    continue;
                }
                if let Some(branch) = lane.branch.take() {
                    self.tree.release(branch);
                    lane.parked = true;
                    return true;
                }
            }
        }
        false
    }

    /// Nobody had room: the oldest lane gets everything, or fails.
    pub(super) fn make_way(&mut self) {
        self.unpark();
        let mut lanes =
            (0..self.jobs.len()).flat_map(|job| (0..self.jobs[job].lanes.len()).map(move |lane| LaneId { job, lane }));
        let Some(oldest) = lanes.find(|&id| self.is_ready(id)) else { return };
        for (at, job) in self.jobs.iter_mut().enumerate() {
            for (lane_at, lane) in job.lanes.iter_mut().enumerate() {
                if (LaneId { job: at, lane: lane_at }) != oldest
                    && let Some(branch) = lane.branch.take()
                {
                    self.tree.release(branch);
                    lane.parked = !lane.done;
                }
            }
        }
        while self.holds.give_way(&mut self.tree) {}
        if self.bring_on(oldest, self.limits.step_rows) {
            return;
        }
        // Pages are lost where a path shares only a part of one with what was there before. Nobody else is left in the
        // tree, so a new one wastes nothing.
        let path_len = self.jobs[oldest.job].lanes[oldest.lane].path.len();
        let fits = path_len.div_ceil(PAGE_TOKENS) <= self.llama.device().pages();
        self.jobs[oldest.job].lanes[oldest.lane].branch = None;
        self.forget_tree();
        if !fits || !self.bring_on(oldest, self.limits.step_rows) {
            let error = self.no_room(path_len);
            let mut context = Context {
                tree: &mut self.tree,
                holds: &mut self.holds,
                vocab: &self.vocab,
                limit: self.limits.context,
            };
            self.jobs[oldest.job].give_up(oldest.lane, error, &mut context);
            self.unpark();
        }
    }

    /// Begins with an empty tree; no lane may have a branch.
    pub(super) fn forget_tree(&mut self) {
        self.meter.forgot(&self.tree.stats());
        self.holds.forget();
        self.tree = new_tree(&self.llama);
        self.planner = Planner::with_parallel(self.limits.method, self.limits.parallel);
    }

    pub(super) fn unpark(&mut self) {
        for lane in self.jobs.iter_mut().flat_map(|job| &mut job.lanes) {
            lane.parked = false;
        }
    }

    /// Removes finished jobs; whoever waited for pages may try again.
    pub(super) fn sweep(&mut self) {
        let mut ended = false;
        for job in &mut self.jobs {
            if job.finished() {
                job.release(&mut self.tree);
                ended = true;
            }
            ended |= job.lanes.iter().any(|lane| lane.done && lane.in_step);
        }
        self.jobs.retain(|job| !job.finished());
        if ended {
            self.unpark();
        }
    }
}
