//! Another device or host tier while the engine lives: K/V in memory stays where that is asked for.

use super::int4::{Int4, Packing};
use super::tier::{Target, Tier};
use super::{Layout, Store};
use crate::base::Result;
use crate::device::cuda::attend::AttendKernel;
use crate::device::cuda::driver::{Gpu, Mapped};
use crate::kv::PAGE_TOKENS;
use std::ops::Range;

impl Store {
    /// Begins anew with another device tier, or with everything on the card. What is in memory stays where `keep` says so.
    /// `layout`: other than as many whole layers as fit the budget.
    pub fn retier(
        &mut self,
        gpu: &Gpu,
        attention: &AttendKernel,
        (bytes, layout): (Option<u64>, Option<Layout>),
        keep: bool,
    ) -> Result<()> {
        let layer_bytes = self.layer_bytes();
        let layout = layout.map_or_else(|| self.layout_for(bytes), Ok)?;
        self.wait()?;
        gpu.wait()?;
        let host = match self.tier.take() {
            Some(Tier { host, int4: None, .. }) => host,
            Some(Tier { host: packed, int4: Some(int4), .. }) => {
                let host = Mapped::new(gpu, layout.layers * layer_bytes)?;
                if keep {
                    self.widen(gpu, &int4.packing, &packed, 0..layout.layers, &|layer| {
                        host.pointer() + (layer * layer_bytes) as u64
                    })?;
                }
                host
            }
            None => {
                let mut host = Mapped::new(gpu, layout.layers * layer_bytes)?;
                for (layer, arena) in self.arenas.iter().enumerate().filter(|_| keep) {
                    host.fetch(gpu, layer * layer_bytes, &arena.kv, layer_bytes)?;
                }
                host
            }
        };
        self.take(gpu, attention, layout)?;
        for (layer, arena) in self.arenas.iter().enumerate().filter(|(at, _)| keep && *at < layout.resident) {
            // SAFETY: an arena has room for a layer; nothing writes the host tier now.
            unsafe { host.send(gpu, layer * layer_bytes, arena.kv.pointer(), layer_bytes)? };
        }
        gpu.wait()?;
        self.tier = bytes.map(|bytes| self.new_tier(gpu, host, bytes, None)).transpose()?;
        Ok(())
    }

    /// Begins anew with a host tier of four bits a number. What is in memory stays, rounded, where `keep` says so.
    pub fn retier_int4(&mut self, gpu: &Gpu, attention: &AttendKernel, bytes: u64, keep: bool) -> Result<()> {
        let number = attention.shape.number;
        let packing = Packing::new(gpu, number, self.kv_heads, attention.shape.head_size as usize)?;
        let (page_bytes, layers) = (packing.page_bytes(), self.layout.layers);
        let packed_bytes = self.pages * page_bytes;
        let layout = self.layout_for(Some(bytes.saturating_sub(packed_bytes as u64)))?;
        if keep && self.tier.as_ref().is_none_or(|tier| tier.int4.is_none()) {
            self.retier(gpu, attention, (Some(bytes), None), true)?;
        }
        self.wait()?;
        gpu.wait()?;
        let host = match self.tier.take() {
            Some(Tier { host, int4: Some(_), .. }) => host,
            exact => {
                let packed = Mapped::new(gpu, layers * packed_bytes)?;
                if let Some(exact) = exact.filter(|_| keep) {
                    let slots: Vec<u32> = (0..(self.pages * PAGE_TOKENS) as u32).collect();
                    let slots_there = gpu.upload(&slots)?;
                    let at = |memory: &Mapped, layer_bytes: usize, layer: usize| Target {
                        kv: memory.pointer() + (layer * layer_bytes) as u64,
                        slots: slots_there.pointer(),
                    };
                    for layer in 0..layers {
                        let from = at(&exact.host, self.layer_bytes(), layer);
                        packing.pack(gpu, from, at(&packed, packed_bytes, layer), slots.len() as u32, false)?;
                    }
                    gpu.wait()?;
                }
                packed
            }
        };
        self.take(gpu, attention, layout)?;
        if keep {
            self.widen(gpu, &packing, &host, 0..layout.resident, &|layer| self.at(layer))?;
        }
        let int4 = Int4 { packing, arrived: gpu.zeros(packed_bytes)?, fresh: [None, None] };
        gpu.wait()?;
        self.tier = Some(self.new_tier(gpu, host, bytes, Some(int4))?);
        Ok(())
    }

    /// Widens all pages of some layers of a packed host tier, and waits.
    fn widen(
        &self,
        gpu: &Gpu,
        packing: &Packing,
        packed: &Mapped,
        layers: Range<usize>,
        to: &dyn Fn(usize) -> u64,
    ) -> Result<()> {
        let pages = gpu.upload(&(0..self.pages as u32).collect::<Vec<_>>())?;
        for layer in layers {
            let from = packed.pointer() + (layer * self.pages * packing.page_bytes()) as u64;
            packing.unpack(gpu, from, to(layer), (pages.pointer(), self.pages))?;
        }
        gpu.wait()
    }
}
