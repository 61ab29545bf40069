//! Launches captured once and replayed with one call; what a kernel is told may be changed between replays.

use super::{Function, Gpu, Launch, fault};
use crate::base::{Error, Result};
use cudarc::driver::{CudaGraph, sys};
use std::ffi::c_void;

/// Captured launches.
pub struct Graph(CudaGraph);

// SAFETY: handles that any thread may use which has the context bound; one owner at a time.
unsafe impl Send for Graph {}

/// One launch of a [`Graph`].
#[derive(Clone, Copy)]
pub struct Node(sys::CUgraphNode);

// SAFETY: as the graph.
unsafe impl Send for Node {}

impl Gpu {
    /// From here on the stream's launches are captured and not run, up to [`end_capture`](Self::end_capture).
    pub fn begin_capture(&self) -> Result<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(|e| fault("a capture", e))?;
        self.captures.set(true);
        Ok(())
    }

    /// Whether launches are captured now.
    pub fn captures(&self) -> bool {
        self.captures.get()
    }

    /// What was captured.
    pub fn end_capture(&self) -> Result<Graph> {
        self.captures.set(false);
        self.marked.set(false);
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags).map_err(|e| fault("a capture", e))?;
        graph.map(Graph).ok_or_else(|| Error::fault("a capture on the GPU gave no graph"))
    }

    /// A graph of what `work` launches.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.begin_capture()?;
        let done = work();
        let graph = self.end_capture();
        done?;
        graph
    }
}

impl Graph {
    pub fn replay(&self) -> Result<()> {
        self.0.launch().map_err(|e| fault("a graph", e))
    }

    /// Launches of a kernel, in no order, with the first parameter of each.
    ///
    /// # Safety
    /// The kernel's first parameter is an `A`.
    pub unsafe fn launches<A: Copy>(&self, kernel: Function) -> Result<Vec<(Node, A)>> {
        let what = "reading a graph";
        let (graph, mut count) = (self.0.cu_graph(), 0);
        // SAFETY: asked without a place for nodes, it writes their count; then as many as there is room for.
        let nodes = unsafe {
            let null = std::ptr::null_mut::<sys::CUgraphNode>();
            sys::cuGraphGetNodes(graph, null, &mut count).result().map_err(|e| fault(what, e))?;
            let mut nodes = vec![std::ptr::null_mut(); count];
            sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).result().map_err(|e| fault(what, e))?;
            nodes
        };
        let mut found = Vec::new();
        for node in nodes {
            // SAFETY: nodes of a live graph; the parameters are the node's own, and the first is what the caller says.
            unsafe {
                let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
                sys::cuGraphNodeGetType(node, &mut kind).result().map_err(|e| fault(what, e))?;
                if kind != sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
                    continue;
                }
                let mut told: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
                sys::cuGraphKernelNodeGetParams_v2(node, &mut told).result().map_err(|e| fault(what, e))?;
                if told.func == kernel.0 && !told.kernelParams.is_null() {
                    found.push((Node(node), (*told.kernelParams).cast::<A>().read_unaligned()));
                }
            }
        }
        Ok(found)
    }

    /// Has the next replays tell a launch something else; when it may begin stays as it was captured.
    ///
    /// # Safety
    /// As of [`Gpu::launch`]; the node is this graph's, and runs this kernel.
    pub unsafe fn tell(&self, node: Node, f: Function, shape: Launch, parameters: &mut [*mut c_void]) -> Result<()> {
        let (grid, null) = (shape.grid, std::ptr::null_mut::<c_void>());
        let told = sys::CUDA_KERNEL_NODE_PARAMS {
            func: f.0,
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: grid.2,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            kernelParams: parameters.as_mut_ptr(),
            extra: null.cast(),
            kern: null.cast(),
            ctx: null.cast(),
        };
        // SAFETY: the caller's.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.0.cu_graph_exec(), node.0, &raw const told) }
            .result()
            .map_err(|e| fault("changing a graph", e))
    }
}
