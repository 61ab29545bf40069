//! Graphs of whole steps: the launches of all layers, captured when a step of the same shape has come a few times, and
//! replayed with one call. A small model's step is bound by launches otherwise.
//!
//! A step has the shape of another where every launch but attention's is the same, addresses included: rooms grow seldom,
//! staged numbers lie where they lay, and so a search's decode steps differ in their plan alone. What attention is told of
//! that is set before the replay, where it changed. Steps with K/V in two tiers, with a watcher and of many rows are
//! launched; so is everything on a driver that refuses a capture, which is told once ([`Device::note`]).

use super::{CudaDevice, LoadedPlan, running, there};
use crate::base::{Error, Result};
use crate::device::cuda::driver::{Begin, Gpu, Graph, Node};
use cudarc::driver::CudaEvent;

/// Rows of the largest steps that are captured: those of more are bound by the card.
const MOST_ROWS: u32 = 128;
/// A shape is captured when it comes for this time: a capture takes as long as some steps.
const CAPTURED_AT: u32 = 3;
/// Graphs that are kept, and shapes that are remembered; the least recently used goes.
const KEPT: usize = 24;

pub(super) struct Graphs {
    /// Whether steps are captured at all.
    wanted: bool,
    /// What is told where the driver refused a capture: nothing is captured from then on.
    refused: Option<String>,
    /// The last used at the end.
    kept: Vec<Kept>,
    /// Shapes that came and are not captured, and how often.
    came: Vec<(Key, u32)>,
    /// Around the attention of the middle layer, in every graph.
    pub(super) marks: [CudaEvent; 2],
    replays: usize,
}

/// What two steps have in common that one graph can run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    rows: u32,
    /// When attention may begin.
    begin: Begin,
    addresses: [u64; 10],
}

struct Kept {
    key: Key,
    graph: Graph,
    /// Attention of each layer.
    nodes: Vec<Node>,
    /// What they are told of the plan.
    plan: LoadedPlan,
    /// Splits that the last layer leaves.
    owed: u32,
}

impl Graphs {
    pub(super) fn new(gpu: &Gpu, wanted: bool) -> Result<Self> {
        let marks = [gpu.new_mark()?, gpu.new_mark()?];
        Ok(Self { wanted, refused: None, kept: Vec::new(), came: Vec::new(), marks, replays: 0 })
    }

    /// Whether a shape that came again is to be captured now.
    fn is_due(&mut self, key: Key) -> bool {
        let times = match self.came.iter().position(|(other, _)| *other == key) {
            Some(at) => self.came.remove(at).1 + 1,
            None => 1,
        };
        if times >= CAPTURED_AT {
            return true;
        }
        if self.came.len() == KEPT {
            self.came.remove(0);
        }
        self.came.push((key, times));
        false
    }

    fn refuse(&mut self, error: &Error) {
        self.wanted = false;
        self.refused = Some(format!(
            "steps are launched one by one, which takes longer, since no graph could be made of them: {}",
            error.message()
        ));
    }

    /// Why nothing is captured although it was wanted.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// K/V lies elsewhere from now on.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.came.clear();
    }
}

impl CudaDevice {
    /// Steps that were replayed and not launched.
    pub fn replays(&self) -> usize {
        self.graphs.replays
    }

    /// The graph for the step that begins, made now where its shape came often enough; `None`: it is launched.
    pub(super) fn find_graph(&mut self) -> Result<Option<usize>> {
        let rows = running(&mut self.running)?.n;
        if !self.graphs.wanted || rows > MOST_ROWS || self.watching.is_some() || self.store.link().is_some() {
            return Ok(None);
        }
        let key = self.key()?;
        if let Some(at) = self.graphs.kept.iter().position(|kept| kept.key == key) {
            return Ok(Some(at));
        }
        if !self.graphs.is_due(key) {
            return Ok(None);
        }
        let captured = self.capture(key);
        running(&mut self.running)?.owed = 0;
        let kept = match captured {
            Ok(kept) => kept,
            Err(error) => {
                self.graphs.refuse(&error);
                return Ok(None);
            }
        };
        if self.graphs.kept.len() == KEPT {
            self.graphs.kept.remove(0);
        }
        self.graphs.kept.push(kept);
        Ok(Some(self.graphs.kept.len() - 1))
    }

    fn key(&mut self) -> Result<Key> {
        let Self { room, attention, store, .. } = self;
        let running = running(&mut self.running)?;
        let room = [&room.x, &room.normed, &room.q, &room.o, &room.gated, &room.part].map(there);
        let [x, normed, q, o, gated, part] = room;
        Ok(Key {
            rows: running.n,
            begin: attention.earliest(&running.plan),
            addresses: [
                running.tokens,
                running.positions,
                running.slots,
                x?.pointer(),
                normed?.pointer(),
                q?.pointer(),
                o?.pointer(),
                gated?.pointer(),
                part?.pointer(),
                store.arena(0),
            ],
        })
    }

    fn capture(&mut self, key: Key) -> Result<Kept> {
        self.gpu.begin_capture()?;
        let launched = self.launch_all();
        let graph = self.gpu.end_capture();
        launched?;
        let graph = graph?;
        let Self { attention, store, layers, .. } = self;
        let nodes = attention.nodes(&graph, (0..layers.len()).map(|layer| store.view(layer)))?;
        let running = running(&mut self.running)?;
        Ok(Kept { key, graph, nodes, plan: running.plan.shared(), owed: running.owed })
    }

    fn launch_all(&mut self) -> Result<()> {
        self.embed()?;
        for layer in 0..self.layers.len() {
            self.queries(layer)?;
            self.attention(layer)?;
            self.output(layer)?;
            self.feed_forward(layer)?;
        }
        Ok(())
    }

    /// Runs the step that begins by a graph.
    pub(super) fn replay(&mut self, at: usize) -> Result<()> {
        // The graph's marks may hold the time of the step before.
        self.collect(self.turn ^ 1)?;
        let mut kept = self.graphs.kept.remove(at);
        let Self { attention, store, room, .. } = self;
        let running = running(&mut self.running)?;
        if !kept.plan.is_like(&running.plan) {
            let (q, o) = (there(&room.q)?, there(&room.o)?);
            for (layer, &node) in kept.nodes.iter().enumerate() {
                attention.retell(&kept.graph, node, &running.plan, [q, o], store.view(layer))?;
            }
            kept.plan = running.plan.shared();
        }
        kept.graph.replay()?;
        running.owed = kept.owed;
        running.replayed = true;
        self.marks[self.turn].graphed = true;
        self.graphs.replays += 1;
        self.graphs.kept.push(kept);
        Ok(())
    }
}
