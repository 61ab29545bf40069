//! A step's way through the model: what is asked of its rows, the forward pass, and who gets the logits.

use super::Worker;
use crate::base::{Error, Result};
use crate::device::Step;
use crate::device::head::HeadRow;
use crate::engine::batch::{Batch, LaneId};
use crate::engine::job::{Context, Role, Work};
use crate::engine::sample::row::{Asked, Row};
use crate::engine::speculate::placed::Placed;
use std::time::Instant;

impl Worker {
    /// Finds out what will be looked at of the wanted rows' logits. Rows of drafts are asked for their temperature only:
    /// what a constraint allows after them is not known before they are accepted.
    pub(super) fn ask(&mut self) {
        self.asked.resize_with(self.batch.wanted.len(), Asked::default);
        self.asked.iter_mut().for_each(Asked::clear);
        for &(at, LaneId { job, lane }) in &self.batch.wanting {
            self.jobs[job].asks(lane, &self.vocab, &mut self.asked[at]);
        }
        for (LaneId { job, .. }, placed) in &self.drafts {
            let Work::Samples(samples) = &self.jobs[*job].work else { continue };
            for node in 0..placed.len() {
                self.asked[placed.wanted(node)].temperature = samples.temperature();
            }
        }
    }

    pub(super) fn forward(&mut self, began: Instant) -> Result<()> {
        self.llama.freed(&self.tree.take_freed());
        let Batch { tokens, positions, slots, rows, wanted, selects, .. } = &self.batch;
        let planning = Instant::now();
        let work = self.planner.plan(&self.tree, rows);
        let (took, io) = (planning.elapsed(), work.io);
        let heads: Vec<HeadRow<'_>> =
            wanted.iter().zip(&self.asked).map(|(&row, asked)| HeadRow { row, want: asked.want() }).collect();
        self.said.clear();
        let step = Step { tokens, positions, slots, work, selects };
        self.llama.forward(&step, &heads, &mut self.said)?;
        self.meter.planned(took, &self.llama.device().attend_io(io));
        self.meter.stepped(began, tokens.len(), self.llama.device().times());
        Ok(())
    }

    /// Hands the logits to who wanted them.
    pub(super) fn hand_out(&mut self) {
        let wanting = std::mem::take(&mut self.batch.wanting);
        let mut drafts = std::mem::take(&mut self.drafts).into_iter().peekable();
        // A job's lanes change place only when its prompt's logits come, which are the only ones it waits for then.
        for &(at, LaneId { job, lane }) in &wanting {
            self.meter.sampled(matches!(self.jobs[job].work, Work::Samples(_)));
            let mut context = Context {
                tree: &mut self.tree,
                holds: &mut self.holds,
                vocab: &self.vocab,
                limit: self.limits.context,
            };
            let mut row = Row::said(&self.said[at], &self.asked[at], self.limits.vocab, &mut self.llama, at);
            self.jobs[job].take_logits(lane, &mut row, &mut context);
            if let Some((_, placed)) = drafts.next_if(|(id, _)| *id == LaneId { job, lane }) {
                self.verify(LaneId { job, lane }, placed);
            }
        }
        self.batch.wanting = wanting;
    }

    /// Goes on along a draft for as long as the tokens that are drawn were drafted, then lets go of it.
    fn verify(&mut self, id: LaneId, placed: Placed) {
        let (mut at, mut accepted) = (None, 0);
        loop {
            let lane = &mut self.jobs[id.job].lanes[id.lane];
            let (Role::Sample(sample), Some(branch), Some(&drawn)) = (&mut lane.role, lane.branch, lane.path.last())
            else {
                // It ended.
                break;
            };
            placed.learn(&mut sample.luck, at, drawn);
            let Some(node) = placed.child(at, drawn) else { break };
            lane.branch = Some(placed.take_over(&mut self.tree, branch, node));
            lane.usage.scored -= 1;
            lane.usage.accepted += 1;
            accepted += 1;
            at = Some(node);
            self.meter.sampled(true);
            let mut context = Context {
                tree: &mut self.tree,
                holds: &mut self.holds,
                vocab: &self.vocab,
                limit: self.limits.context,
            };
            let wanted = placed.wanted(node);
            let (said, asked) = (&self.said[wanted], &self.asked[wanted]);
            let mut row = Row::said(said, asked, self.limits.vocab, &mut self.llama, wanted);
            self.jobs[id.job].take_logits(id.lane, &mut row, &mut context);
        }
        if !placed.is_empty() {
            self.meter.verified(placed.len(), accepted);
        }
        placed.release(&mut self.tree);
        if let Some(branch) = self.jobs[id.job].lanes[id.lane].branch {
            self.tree.join(branch);
        }
    }

    /// The device failed in the middle of a step: what the tree says of K/V is not true any more.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for job in &mut self.jobs {
            job.fail(error.clone(), &mut self.tree);
        }
        self.jobs.clear();
        self.drafts.clear();
        self.forget_tree();
    }
}
