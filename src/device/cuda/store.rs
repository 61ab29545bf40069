//! Where a layer's K/V lies on the card: in an arena of its own, or, where not all of K/V fits there, in one of two (or in the
//! only one) that layers take turns in, filled from the host tier while the layers before are computed.
//!
//! ```text
//! host tier (pinned)   [layer 0][layer 1][layer 2][layer 3][layer 4] …       every page of every layer
//! card                 [layer 0][   2, 4, …      ][   1, 3, …      ]         one resident, two in turns
//! ```
//!
//! An arena has a place for every page of the host tier, at the same number, so that one attention plan serves all layers.
//!
//! | file | what |
//! |---|---|
//! | here | the arenas, and what is there |
//! | `layout` | which arena a layer has; integers only |
//! | `tier`, `int4` | the host tier and its streams; the same in four bits a number |
//! | `step` | what a step fetches and writes back, in which order |
//! | `speeds` | how fast the ways to fetch are |
//! | `retier` | another tier while K/V stays |

use super::attend::{AttendKernel, KvLayout, KvView};
use super::driver::{Begin, Buffer, Gpu, Mapped};
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::tiers::Link;
use crate::kv::PAGE_TOKENS;

pub mod int4;
mod layout;
mod retier;
mod speeds;
mod step;
mod tier;

pub use layout::{Layout, layer_page_bytes, least_bytes};
pub use tier::Target;
use tier::Tier;

/// All K/V that the card has.
pub struct Store {
    layout: Layout,
    arenas: Vec<Arena>,
    pages: usize,
    kv_heads: usize,
    layer_page_bytes: usize,
    tier: Option<Tier>,
}

struct Arena {
    kv: Buffer,
    view: KvView,
}

impl Store {
    /// Everything on the card, or what `bytes` hold of it, and all of it in a host tier.
    pub fn new(gpu: &Gpu, attention: &AttendKernel, shape: &Shape, pages: usize, bytes: Option<u64>) -> Result<Self> {
        let mut store = Self {
            layout: Layout::whole(shape.layers),
            arenas: Vec::new(),
            pages,
            kv_heads: shape.kv_heads,
            layer_page_bytes: layer_page_bytes(shape),
            tier: None,
        };
        store.take(gpu, attention, store.layout_for(bytes)?)?;
        if let Some(bytes) = bytes {
            let host = Mapped::new(gpu, shape.layers * store.layer_bytes())?;
            store.tier = Some(store.new_tier(gpu, host, bytes, None)?);
        }
        Ok(store)
    }

    /// Bytes of one layer of all pages.
    fn layer_bytes(&self) -> usize {
        self.pages * self.layer_page_bytes
    }

    fn layout_for(&self, bytes: Option<u64>) -> Result<Layout> {
        let (layers, layer_bytes) = (self.layout.layers, self.layer_bytes());
        let Some(bytes) = bytes else { return Ok(Layout::whole(layers)) };
        let arenas = usize::try_from(bytes / layer_bytes as u64).unwrap_or(usize::MAX);
        Layout::of(layers, arenas).ok_or_else(|| {
            Error::limit(format!(
                "a device tier of {} cannot hold what must be there: {} for a layer of {} pages; raise --kv-budget or lower \
                 --ram-budget",
                Human(bytes),
                Human(layer_bytes as u64),
                self.pages
            ))
        })
    }

    /// Takes the arenas of a layout; the old ones go first, since both may not fit.
    fn take(&mut self, gpu: &Gpu, attention: &AttendKernel, layout: Layout) -> Result<()> {
        self.arenas.clear();
        let arena = |_| -> Result<Arena> {
            // Zeros: what no row has written yet must be finite where a tile reads past a path's end.
            let kv = gpu.zeros(self.layer_bytes())?;
            let slots = (self.pages * PAGE_TOKENS) as u32;
            Ok(Arena { view: attention.view(gpu, KvLayout::Paged { at: kv.pointer() }, slots)?, kv })
        };
        self.arenas = (0..layout.arenas()).map(arena).collect::<Result<_>>()?;
        self.layout = layout;
        Ok(())
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    fn at(&self, layer: usize) -> u64 {
        self.arenas[self.layout.arena(layer)].kv.pointer()
    }

    /// The memory that a layer's pages are read from on the card.
    pub fn arena(&self, layer: usize) -> u64 {
        self.at(layer)
    }

    /// A layer of the host tier, as kernels find it; 0 where there is none.
    pub fn host(&self, layer: usize) -> u64 {
        self.tier.as_ref().map_or(0, |tier| tier.host.pointer() + (layer * self.layer_bytes()) as u64)
    }

    /// The first pages of a layer on the card, once the stream is done.
    pub fn download(&self, gpu: &Gpu, layer: usize, pages: usize) -> Result<Vec<u16>> {
        gpu.download(&self.arenas[self.layout.arena(layer)].kv, pages * self.layer_page_bytes / 2)
    }

    /// Counts memory of the card's tier beside the arenas.
    pub fn add_peak(&mut self, bytes: u64) {
        if let Some(tier) = &mut self.tier {
            tier.link.peak_bytes += bytes;
        }
    }

    pub fn view(&self, layer: usize) -> &KvView {
        &self.arenas[self.layout.arena(layer)].view
    }

    /// Whether kernels that write K/V may begin before the one before them ends: not where they wait for a fetch.
    pub fn begin_writing(&self, early: Begin) -> Begin {
        if self.tier.is_some() { Begin::After } else { early }
    }

    /// Adds the times of the step before this one, which is done.
    pub fn collect_before(&mut self) -> Result<()> {
        self.tier.as_mut().map_or(Ok(()), |tier| tier.collect(tier.turn ^ 1))
    }

    /// Seconds that single rows took to be brought for the step that was collected last, and that it waited for them; told once.
    pub fn take_waited(&mut self) -> Option<(f64, f64)> {
        self.tier.as_mut().and_then(|tier| tier.waited.take())
    }

    /// Adds the times of steps that are done; waits for what is not.
    pub fn collect(&mut self) -> Result<()> {
        let Some(tier) = &mut self.tier else { return Ok(()) };
        (0..2).try_for_each(|turn| tier.collect(turn))
    }

    /// Waits until the host tier has all that was written.
    pub fn wait(&self) -> Result<()> {
        self.tier.as_ref().map_or(Ok(()), |tier| {
            tier.up.wait()?;
            tier.down.wait()
        })
    }

    pub fn link(&self) -> Option<Link> {
        self.tier.as_ref().map(|tier| tier.link)
    }

    /// Of each page how many of its layers are here; `None` where all are.
    pub fn layers_here(&self) -> Option<Vec<f32>> {
        let tier = self.tier.as_ref()?;
        let mut layers = vec![self.layout.resident as f32; self.pages];
        tier.held.iter().for_each(|held| held.add(&mut layers));
        Some(layers)
    }

    /// Of each page how many of its layers were brought for the last step; `None` where all are here.
    pub fn layers_moved(&self) -> Option<Vec<f32>> {
        let tier = self.tier.as_ref()?;
        let turn = &tier.turns[tier.turn];
        let mut layers = vec![0.0; self.pages];
        turn.pages.iter().for_each(|&page| layers[page as usize] += turn.brought as f32);
        Some(layers)
    }

    /// All K/V, `[layer][page]`, once the stream is done: of the host tier, or of the card where there is none.
    pub fn bytes(&self, gpu: &Gpu) -> Result<Vec<u8>> {
        self.wait()?;
        match &self.tier {
            Some(tier) => Ok(tier.host.bytes().to_vec()),
            None => {
                let arena = |arena: &Arena| gpu.download::<u8>(&arena.kv, arena.kv.bytes());
                Ok(self.arenas.iter().map(arena).collect::<Result<Vec<_>>>()?.concat())
            }
        }
    }
}
