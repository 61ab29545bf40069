//! Samples while they are generated, and their pieces once a thought has grown from them.

use super::{LiveSample, RunState, TokenPiece, WAITING_SAMPLES};
use crate::search::event::Purpose;
use crate::search::tree::{NodeId, Status};

impl RunState {
    pub(super) fn token(&mut self, request: u64, node: NodeId, sample: usize, text: &str, logprob: f32) {
        if self.tree.get(node).is_none() {
            return;
        }
        let found = self.live.iter().position(|l| l.request == request && l.sample == sample);
        let at = found.unwrap_or_else(|| {
            let purpose = self.asked.get(&request).map_or(Purpose::Generate, |a| a.purpose);
            self.live.push(LiveSample { request, sample, node, purpose, text: String::new(), pieces: Vec::new() });
            self.shape += 1;
            self.live.len() - 1
        });
        let live = &mut self.live[at];
        live.text.push_str(text);
        live.pieces.push((text.to_string(), logprob));
    }

    pub(super) fn replied(&mut self, request: u64, node: NodeId, sample: usize, text: &str) {
        self.replies += 1;
        let generated = self.asked.get(&request).is_none_or(|a| a.purpose == Purpose::Generate);
        if let Some(at) = self.live.iter().position(|l| l.request == request && l.sample == sample) {
            let live = self.live.remove(at);
            self.shape += 1;
            if generated {
                if self.waiting.len() == WAITING_SAMPLES {
                    self.waiting.pop_front();
                }
                self.waiting.push_back((node, text.to_string(), live.pieces));
            }
        }
        if let Some(asked) = self.asked.get_mut(&request) {
            asked.left = asked.left.saturating_sub(1);
            if asked.left == 0 {
                self.asked.remove(&request);
            }
        }
    }

    pub(super) fn grown(&mut self, node: NodeId, parent: NodeId, text: &str, tokens: usize) {
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
        // The reply may have been trimmed on its way to a thought; its tokens are those of the whole reply.
        let found = self.waiting.iter().position(|(from, reply, pieces)| {
            *from == parent && (reply == text || (pieces.len() == tokens && reply.contains(text)))
        });
        if let Some((_, _, pieces)) = found.and_then(|at| self.waiting.remove(at)) {
            self.pieces.insert(node, pieces);
        }
    }

    /// Text pieces of a thought with their probabilities, where its tokens were seen live.
    pub fn pieces(&self, node: NodeId) -> Option<&[TokenPiece]> {
        self.pieces.get(&node).map(Vec::as_slice)
    }
}
