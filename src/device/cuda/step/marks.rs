//! How long steps take on the card, by marks in the stream that nobody waits for.

use super::{CudaDevice, Gpu};
use crate::base::Result;
use cudarc::driver::CudaEvent;

/// Times of one step, read when the step after the next begins, or when somebody waits anyway.
pub(super) struct Marks {
    pub(super) whole: [CudaEvent; 2],
    /// Attention of the middle layer stands for all: more marks would hold the stream up.
    pub(super) attention: [CudaEvent; 2],
    /// The step was a graph, which has marks of its own around attention.
    pub(super) graphed: bool,
    set: bool,
}

impl Marks {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            whole: [gpu.new_mark()?, gpu.new_mark()?],
            attention: [gpu.new_mark()?, gpu.new_mark()?],
            graphed: false,
            set: false,
        })
    }

    pub(super) fn end(&mut self, gpu: &Gpu) -> Result<()> {
        self.set = true;
        gpu.set_mark(&self.whole[1])
    }
}

impl CudaDevice {
    /// Waits for a step's marks and adds its times.
    pub(super) fn collect(&mut self, turn: usize) -> Result<()> {
        let marks = &mut self.marks[turn];
        if !std::mem::take(&mut marks.set) {
            return Ok(());
        }
        let whole = self.gpu.microseconds(&marks.whole[0], &marks.whole[1])? * 1e-6;
        let [before, after] = if marks.graphed { &self.graphs.marks } else { &marks.attention };
        let one = self.gpu.microseconds(before, after)? * 1e-6;
        let attention = (one * self.shape.layers as f64).min(whole);
        self.times.attention += attention;
        self.times.products += whole - attention;
        Ok(())
    }
}
