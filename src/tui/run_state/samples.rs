//! Samples while they are generated, and the thoughts that grow from them.

use super::{LiveSample, RunState};
use crate::search::event::Purpose;
use crate::search::tree::{NodeId, Status};

impl RunState {
    pub(super) fn token(&mut self, request: u64, node: NodeId, sample: usize, text: &str) {
        if self.tree.get(node).is_none() {
            return;
        }
        let found = self.live.iter().position(|l| l.request == request && l.sample == sample);
        let at = found.unwrap_or_else(|| {
            let purpose = self.asked.get(&request).map_or(Purpose::Generate, |a| a.purpose);
            self.live.push(LiveSample { request, sample, node, purpose, text: String::new() });
            self.shape += 1;
            self.live.len() - 1
        });
        self.live[at].text.push_str(text);
    }

    pub(super) fn replied(&mut self, request: u64, sample: usize) {
        self.replies += 1;
        if let Some(at) = self.live.iter().position(|l| l.request == request && l.sample == sample) {
            self.live.remove(at);
            self.shape += 1;
        }
        if let Some(asked) = self.asked.get_mut(&request) {
            asked.left = asked.left.saturating_sub(1);
            if asked.left == 0 {
                self.asked.remove(&request);
            }
        }
    }

    pub(super) fn grown(&mut self, node: NodeId, parent: NodeId, text: &str, token_logprobs: &[f32]) {
        let depth = self.tree.node(node).depth;
        if self.by_depth.is_empty() {
            self.by_depth.push(1);
        }
        if self.by_depth.len() <= depth {
            self.by_depth.resize(depth + 1, 0);
        }
        self.by_depth[depth] += 1;
        self.statuses[Status::Open as usize] += 1;
        self.shape += 1;
        if let Some(pieces) = self.reply.take_if(|reply| reply.becomes(parent, text, token_logprobs)) {
            self.pieces.insert(node, pieces.into());
        }
    }

    /// Text pieces of a thought with their natural-log probabilities, where they are known.
    pub fn pieces(&self, node: NodeId) -> Option<Vec<(&str, f32)>> {
        Some(self.pieces.get(&node)?.with(&self.tree.get(node)?.token_logprobs))
    }
}
