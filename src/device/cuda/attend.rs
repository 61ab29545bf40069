//! One step's attention on the card: the kernel for a model's heads, a plan in device memory, the launch.

mod heads;

use super::driver::{Begin, Buffer, Function, Gpu, Graph, Launch, Module, Node, fault};
use super::ptx;
use super::work::{CudaPlan, Kernel, Machine};
use crate::base::{Error, Result};
use cudarc::driver::sys::{self, CUdeviceptr};
use std::ffi::c_void;

pub use heads::{HEAD_SIZES, HeadShape, Number};

/// K/V of one layer: where slot s of K/V head h lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvLayout {
    /// `[page][kv_head][K|V][16][d]`; slot = page × 16 + offset.
    Paged { at: CUdeviceptr },
    /// K and V apart, each `[slot][kv_head][d]`.
    Flat { k: CUdeviceptr, v: CUdeviceptr },
}

/// The parameter block of the kernels: `Args` of `kernels/plan.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Args {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub out: u64,
    part_o: u64,
    part_lse: u64,
    barrier: u64,
    items: u64,
    cta_items: u64,
    pub tiles: u64,
    batch_row: u64,
    merge_row: u64,
    merge_first: u64,
    merge: u64,
    pub page_stride: u64,
    pub token_stride: u32,
    pub head_stride: u32,
    pub group: u32,
    pub kv_heads: u32,
    ctas: u32,
    partials: u32,
    merges: u32,
    pub scale_log2: f32,
    page_skip: u32,
    page_coord: u32,
    head_rows: u32,
    head_coord: u32,
}

/// Tensor maps of K and V: boxes of 16 tokens and of 64.
#[repr(C)]
#[derive(Clone, Copy)]
struct Maps([sys::CUtensorMap; 4]);

/// K/V of one layer as launches are told of it.
pub struct KvView {
    layout: KvLayout,
    /// For the Hopper kernel.
    maps: Option<Maps>,
}

/// The attention kernel for one head shape.
pub struct AttendKernel {
    pub shape: HeadShape,
    kernel: Kernel,
    machine: Machine,
    function: Function,
    threads: u32,
    shared_bytes: u32,
    /// Keeps the function alive.
    _module: Module,
}

/// Where a plan's arrays lie in device memory; the barriers are zeros. All at multiples of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct PlanPlaces {
    pub part_o: CUdeviceptr,
    pub part_lse: CUdeviceptr,
    pub barrier: CUdeviceptr,
    pub items: CUdeviceptr,
    pub cta_items: CUdeviceptr,
    pub tiles: CUdeviceptr,
    pub batch_row: CUdeviceptr,
    pub merge_row: CUdeviceptr,
    pub merge_first: CUdeviceptr,
    pub merge: CUdeviceptr,
}

/// A plan in device memory, with room for its partials. Launches on one stream only: they share that room.
pub struct LoadedPlan {
    args: Args,
    rows: u32,
    _buffers: Vec<Buffer>,
}

impl LoadedPlan {
    /// The same plan; whoever holds its arrays keeps them.
    pub fn shared(&self) -> Self {
        Self { args: self.args, rows: self.rows, _buffers: Vec::new() }
    }

    /// Whether a launch is told the same of both.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.args, self.rows) == (other.args, other.rows)
    }
}

impl AttendKernel {
    /// The best kernel for the card, or the one asked for.
    pub fn new(gpu: &Gpu, shape: HeadShape, wanted: Option<Kernel>) -> Result<Self> {
        shape.check()?;
        let hopper = gpu.compute == (9, 0) && ptx::attend(Kernel::Hopper, shape.number, shape.head_size).is_some();
        let kernel = wanted.unwrap_or(if hopper { Kernel::Hopper } else { Kernel::Ampere });
        if kernel == Kernel::Hopper && gpu.compute != (9, 0) {
            return Err(Error::input(format!("{} is no Hopper card, and has no use for its kernel", gpu.name)));
        }
        let text = ptx::attend(kernel, shape.number, shape.head_size)
            .ok_or_else(|| Error::input(format!("there is no {kernel:?} kernel for head size {}", shape.head_size)))?;
        let d = shape.head_size;
        let (threads, shared_bytes, per_processor) = match kernel {
            // Layout<D>::SMEM and Shared<D>::BYTES of the kernels.
            Kernel::Ampere => (128, 3 * (2 * 64 * (d * 2 + 16) + 64 * 4 + 16) + 4 * (16 + 64 * 4), 2),
            Kernel::Hopper => (384, d / 64 * (6 * 2 * 64 * 128 + 128 * 128) + 6 * 288 + 64 * 8 + 2 * 6 * 8, 1),
        };
        // Cards with less shared memory than an A100 hold one block where it holds two.
        let blocks =
            if gpu.shared_bytes < 2 * shared_bytes && gpu.shared_bytes < 160 << 10 { 1 } else { per_processor };
        if shared_bytes > gpu.shared_bytes {
            return Err(Error::fault(format!(
                "{} has {} bytes of shared memory, the kernel needs {shared_bytes}: use --device cpu",
                gpu.name, gpu.shared_bytes
            )));
        }
        let module = gpu.load(text)?;
        let function = module.function("attend_tree", shared_bytes)?;
        let machine = Machine {
            kernel,
            resident: gpu.multiprocessors * blocks,
            kv_heads: shape.kv_heads,
            group: shape.group(),
            head_size: d,
        };
        Ok(Self { shape, kernel, machine, function, threads, shared_bytes, _module: module })
    }

    /// What plans for this kernel are made for.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Copies a plan to the card.
    pub fn load(&self, gpu: &Gpu, plan: &CudaPlan) -> Result<LoadedPlan> {
        let (part_o, part_lse) = self.partial_bytes(plan);
        let buffers = vec![
            gpu.alloc(part_o)?,
            gpu.alloc(part_lse)?,
            gpu.zeros(self.barrier_bytes())?,
            gpu.upload(&plan.items)?,
            gpu.upload(&plan.cta_items)?,
            gpu.upload(&plan.tiles)?,
            gpu.upload(&plan.batch_row)?,
            gpu.upload(&plan.merge_row)?,
            gpu.upload(&plan.merge_first)?,
            gpu.upload(&plan.merge)?,
        ];
        let at = |i: usize| buffers[i].pointer();
        let places = PlanPlaces {
            part_o: at(0),
            part_lse: at(1),
            barrier: at(2),
            items: at(3),
            cta_items: at(4),
            tiles: at(5),
            batch_row: at(6),
            merge_row: at(7),
            merge_first: at(8),
            merge: at(9),
        };
        Ok(LoadedPlan { _buffers: buffers, ..self.place(plan, places) })
    }

    /// A plan whose arrays the caller puts into device memory, which must stay there while the plan is launched.
    pub fn place(&self, plan: &CudaPlan, places: PlanPlaces) -> LoadedPlan {
        let shape = &self.shape;
        let identity = plan.batch_row.iter().enumerate().all(|(i, &r)| r as usize == i);
        let args = Args {
            part_o: places.part_o,
            part_lse: places.part_lse,
            barrier: places.barrier,
            items: places.items,
            cta_items: places.cta_items,
            tiles: places.tiles,
            batch_row: if identity { 0 } else { places.batch_row },
            merge_row: places.merge_row,
            merge_first: places.merge_first,
            merge: places.merge,
            group: shape.group(),
            kv_heads: shape.kv_heads,
            ctas: plan.ctas() as u32,
            partials: plan.moves.partials as u32,
            merges: plan.merge_row.len() as u32,
            scale_log2: std::f32::consts::LOG2_E / (shape.head_size as f32).sqrt(),
            ..Args::default()
        };
        LoadedPlan { args, rows: plan.batch_row.len() as u32, _buffers: Vec::new() }
    }

    /// Bytes of a plan's partial rows and of their sums.
    pub fn partial_bytes(&self, plan: &CudaPlan) -> (usize, usize) {
        let rows = plan.moves.partials as usize * self.shape.heads as usize;
        (rows * self.shape.head_size as usize * 4, rows * 4)
    }

    /// Bytes of the barriers, zero before a plan's first launch.
    pub fn barrier_bytes(&self) -> usize {
        self.shape.kv_heads as usize * 128
    }

    /// The parameters for one layer: `q` and `out` are `[rows][heads][d]`, K/V holds `slots` slots (a multiple of 16).
    pub(super) fn args(&self, plan: &LoadedPlan, q: &Buffer, kv: KvLayout, out: &Buffer) -> Args {
        let mut args = plan.args;
        args.q = q.pointer();
        args.out = out.pointer();
        self.locate(&mut args, kv);
        args
    }

    /// Where K/V lies.
    fn locate(&self, args: &mut Args, kv: KvLayout) {
        let (heads, d) = (self.shape.kv_heads, self.shape.head_size);
        match kv {
            KvLayout::Paged { at } => {
                args.k = at;
                args.v = at + u64::from(16 * d * 2);
                args.page_stride = u64::from(heads * 32 * d);
                args.token_stride = d;
                args.head_stride = 32 * d;
                (args.page_skip, args.page_coord, args.head_rows, args.head_coord) = (16, 1, 32, 0);
            }
            KvLayout::Flat { k, v } => {
                args.k = k;
                args.v = v;
                args.page_stride = u64::from(16 * heads * d);
                args.token_stride = heads * d;
                args.head_stride = d;
                (args.page_skip, args.page_coord, args.head_rows, args.head_coord) = (0, 0, 0, 1);
            }
        }
    }

    /// How a launch of so many blocks may begin: those of the Hopper kernel wait for what they read, and are resident at
    /// once where the card holds them all, since whatever runs beside them ends without them.
    pub fn earliest(&self, plan: &LoadedPlan) -> Begin {
        let blocks = plan.args.ctas * self.shape.kv_heads;
        let early = self.kernel == Kernel::Hopper && blocks <= self.machine.resident;
        if early { Begin::Early } else { Begin::Together }
    }

    /// K/V of one layer for launches: `slots` slots (a multiple of 16), all of it finite numbers.
    pub fn view(&self, gpu: &Gpu, layout: KvLayout, slots: u32) -> Result<KvView> {
        let maps = match self.kernel {
            Kernel::Ampere => None,
            Kernel::Hopper => Some(self.maps(gpu, layout, slots)?),
        };
        Ok(KvView { layout, maps })
    }

    /// Runs the plan on one layer's K/V. `q` and `out`: `[rows][heads][d]`. `begin`: `Together`, or what
    /// [`earliest`](Self::earliest) says.
    pub fn launch(
        &self,
        gpu: &Gpu,
        plan: &LoadedPlan,
        q: &Buffer,
        kv: &KvView,
        out: &Buffer,
        begin: Begin,
    ) -> Result<()> {
        if plan.rows == 0 {
            return Ok(());
        }
        // SAFETY: the parameters are the kernel's; its buffers live as long as the plan, q, out and the K/V.
        self.told(plan, q, kv, out, begin, |launch, parameters| unsafe {
            gpu.launch(self.function, launch, parameters)
        })
    }

    /// Calls `launch` with what a launch takes.
    fn told(
        &self,
        plan: &LoadedPlan,
        q: &Buffer,
        kv: &KvView,
        out: &Buffer,
        begin: Begin,
        launch: impl FnOnce(Launch, &mut [*mut c_void]) -> Result<()>,
    ) -> Result<()> {
        let row_bytes = self.shape.heads as usize * self.shape.head_size as usize * 2;
        assert!(q.bytes().min(out.bytes()) >= plan.rows as usize * row_bytes, "queries and outputs of all rows");
        let mut args = self.args(plan, q, kv.layout, out);
        let grid = (args.ctas * self.shape.kv_heads, 1, 1);
        let shape = Launch { grid, threads: self.threads, shared_bytes: self.shared_bytes, begin };
        let args_at = (&raw mut args).cast::<c_void>();
        match kv.maps {
            // The kernel takes one `Args`, on Hopper `Maps` after it.
            None => launch(shape, &mut [args_at]),
            Some(mut maps) => launch(shape, &mut [args_at, (&raw mut maps).cast()]),
        }
    }

    /// The launches of a graph in the order of the layers' K/V: one of each.
    pub fn nodes<'v>(&self, graph: &Graph, views: impl Iterator<Item = &'v KvView>) -> Result<Vec<Node>> {
        // SAFETY: the kernel's first parameter is one `Args`.
        let launches = unsafe { graph.launches::<Args>(self.function)? };
        views
            .map(|view| {
                let mut args = Args::default();
                self.locate(&mut args, view.layout);
                let node = launches.iter().find(|(_, told)| told.k == args.k).map(|(node, _)| *node);
                node.ok_or_else(|| Error::fault("a graph lacks the attention of a layer"))
            })
            .collect()
    }

    /// Has a node of a graph run another plan of as many rows. `q`, `kv` and `out` are those it was captured with.
    pub fn retell(
        &self,
        graph: &Graph,
        node: Node,
        plan: &LoadedPlan,
        [q, out]: [&Buffer; 2],
        kv: &KvView,
    ) -> Result<()> {
        // SAFETY: the node is of this kernel; the parameters as of `launch`.
        self.told(plan, q, kv, out, Begin::After, |launch, parameters| unsafe {
            graph.tell(node, self.function, launch, parameters)
        })
    }

    fn maps(&self, gpu: &Gpu, kv: KvLayout, slots: u32) -> Result<Maps> {
        gpu.bind()?;
        let (heads, d) = (u64::from(self.shape.kv_heads), u64::from(self.shape.head_size));
        let slots = u64::from(slots);
        let mut args = Args::default();
        self.locate(&mut args, kv);
        let paged = matches!(kv, KvLayout::Paged { .. });
        let kind = match self.shape.number {
            Number::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Number::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        };
        let encode = |at: u64, skipped: u64, tall: bool| {
            let (dims, strides) = if paged {
                ([d, heads * 32 - skipped, slots / 16], [d * 2, heads * 32 * d * 2])
            } else {
                ([d, slots, heads], [heads * d * 2, d * 2])
            };
            let boxes = match (tall, paged) {
                (false, _) => [64, 16, 1],
                (true, true) => [64, 16, 4],
                (true, false) => [64, 64, 1],
            };
            let mut map = sys::CUtensorMap { opaque: [0; 16] };
            // SAFETY: the arrays have the rank's lengths, and the memory described is the layer's K/V.
            unsafe {
                sys::cuTensorMapEncodeTiled(
                    &mut map,
                    kind,
                    3,
                    at as *mut c_void,
                    dims.as_ptr(),
                    strides.as_ptr(),
                    boxes.as_ptr(),
                    [1, 1, 1].as_ptr(),
                    sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                    sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                    sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                )
            }
            .result()
            .map_err(|e| fault("a tensor map", e))?;
            Ok::<_, Error>(map)
        };
        let v_skip = if paged { 16 } else { 0 };
        Ok(Maps([
            encode(args.k, 0, false)?,
            encode(args.v, v_skip, false)?,
            encode(args.k, 0, true)?,
            encode(args.v, v_skip, true)?,
        ]))
    }
}
