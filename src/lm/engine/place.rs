//! Which device runs the model: what `--device` says, and what this machine has.

use super::{
    DEFAULT_PERCENT, EngineOptions, Room, SPARE_BYTES, Sample, check_least, check_no_host_tier, room, unreadable,
};
use crate::attention::cuda_plan::{Cutting, StepPlanner};
use crate::base::size::{Human, Size, free_ram};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::device::cpu::hot::least_bytes;
use crate::device::cpu::simd::Simd;
use crate::device::cpu::{CpuDevice, CpuOptions, default_threads};
use crate::device::cuda::driver::{self, Gpu};
use crate::device::cuda::step::{self, CudaDevice, CudaOptions};
use crate::device::cuda::store;
use crate::device::weight::Weights;
use crate::device::{Device, Shape};
use crate::model::llama::Llama;
use crate::offload::{self, skew::Skew};

/// K/V tokens that the default budget of a card holds at most.
const CARD_TOKENS: u64 = 262_144;

/// Percent of what weights leave of a card's free memory that the default budget takes at most.
const CARD_PERCENT: f64 = 60.0;

/// A device found and opened, before anything is loaded.
pub enum Place {
    /// With why a card that is here is not used.
    Cpu {
        note: Option<String>,
    },
    Cuda(Gpu),
}

impl Place {
    /// Opens what `--device` names. `auto` takes a card where one can run the model, and says in the note why it could not.
    pub fn choose(device: &str, shape: &Shape) -> Result<Self> {
        match device {
            "cpu" => Ok(Self::Cpu { note: None }),
            "auto" if !driver::is_present() => Ok(Self::Cpu { note: None }),
            "auto" => Ok(match card(0, shape) {
                Ok(gpu) => Self::Cuda(gpu),
                Err(e) => Self::Cpu { note: Some(e.message().to_string()) },
            }),
            "cuda" => card(0, shape).map(Self::Cuda),
            "cuda:all" => Err(Error::input("--device cuda:all: one model runs on one card; name it, such as cuda:0")),
            other => card(numbered(other)?, shape).map(Self::Cuda),
        }
    }

    /// Puts the weights there, with as many K/V pages as the budget holds. Too little memory is refused first.
    pub fn load(
        self,
        weights: Weights,
        options: &EngineOptions,
        sample: Option<&Sample>,
    ) -> Result<(Llama, Option<Skew>)> {
        let layers = weights.shape.layers;
        let mut skew = None;
        let device: Box<dyn Device> = match self {
            Self::Cpu { .. } => {
                let Room { pages, device_bytes } = room(&weights, options, free_ram())?;
                let shape = weights.shape.clone();
                let mut device = CpuDevice::new(
                    weights,
                    CpuOptions {
                        threads: options.threads.unwrap_or_else(default_threads).max(1),
                        activations: options.activations,
                        pages,
                        kv: options.kv,
                        simd: Simd::best(),
                    },
                )?;
                if let Some(bytes) = device_bytes {
                    skew = sample.map(|sample| sample.skew(&mut device, &shape)).transpose()?;
                    let fetch = options.offload.fetch(skew.as_ref(), shape.layers, device.usual_look())?;
                    let least = least_bytes(&fetch, pages, &shape, options.kv.bytes());
                    check_least(bytes, least, pages, options.offload.method)?;
                    device.offload(bytes, fetch)?;
                }
                Box::new(device)
            }
            Self::Cuda(gpu) => {
                let CardRoom { pages, device_bytes } =
                    card_room(&weights, options, gpu.memory()?.0 as u64, free_ram())?;
                let mut planner = StepPlanner::new(Cutting::of(options.method));
                let planning = Box::new(move |work: &_, machine: &_| planner.plan(work, machine));
                let rows = options.step_rows.unwrap_or(step::STEP_ROWS);
                let shape = weights.shape.clone();
                let card = CudaOptions { pages, rows, planning, tier: device_bytes, graphs: options.graphs };
                let mut device = CudaDevice::new(gpu, weights, card)?;
                if let Some(bytes) = device_bytes
                    && options.offload.method != offload::Method::Full
                {
                    // A sample is read through layers in turns, then the tier begins anew with what it says.
                    skew = sample.map(|sample| sample.for_card().skew(&mut device, &shape)).transpose()?;
                    let fetch = options.offload.fetch(skew.as_ref(), shape.layers, device.usual_look())?;
                    device.refetch(Some((bytes, fetch)), &[])?;
                }
                Box::new(device)
            }
        };
        Ok((Llama::new(device, layers), skew))
    }
}

/// Refuses what no device is called, whether anything is to run on it or not.
pub fn check_device(device: &str) -> Result<()> {
    match device {
        "auto" | "cpu" | "cuda" | "cuda:all" => Ok(()),
        other => numbered(other).map(drop),
    }
}

/// The card that `cuda:N` names.
fn numbered(device: &str) -> Result<usize> {
    device.strip_prefix("cuda:").and_then(|n| n.parse().ok()).ok_or_else(|| {
        let device = sanitize_line(device);
        Error::input(format!("device `{device}` is unknown; there are auto, cpu, cuda and cuda:N"))
    })
}

/// A card that can run a model of this shape. What is missing is the user's to mend, so all errors are of input.
fn card(ordinal: usize, shape: &Shape) -> Result<Gpu> {
    let open = || {
        let count = driver::count()?;
        if ordinal >= count {
            return Err(Error::input(format!(
                "cuda:{ordinal} is not there: the driver shows {count} card{}, numbered from 0: use --device cpu",
                if count == 1 { "" } else { "s" }
            )));
        }
        let gpu = Gpu::open(ordinal)?;
        step::check_model(&gpu, shape)?;
        Ok(gpu)
    };
    open().map_err(|e| Error::input(e.message()))
}

/// What K/V memory a card's model takes: pages, and the bytes of the card's tier where a host tier holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CardRoom {
    pages: usize,
    device_bytes: Option<u64>,
}

/// K/V pages within the budgets, given the card's free memory and the host's. Refuses what does not fit, with the numbers.
fn card_room(weights: &Weights, options: &EngineOptions, free: u64, free_ram: Option<u64>) -> Result<CardRoom> {
    let shape = &weights.shape;
    let page_bytes = step::page_bytes(shape);
    let weight_bytes = step::weight_bytes(weights);
    let rows = options.step_rows.unwrap_or(step::STEP_ROWS);
    let heavy = match options.offload.method {
        offload::Method::H2o => step::heavy_bytes(rows, options.context.unwrap_or(shape.context)),
        _ => 0,
    };
    let work_bytes = step::work_bytes(shape, rows) + heavy;
    let left = free.saturating_sub(weight_bytes + work_bytes);
    let most = CARD_TOKENS / crate::kv::PAGE_TOKENS as u64 * page_bytes;
    let budget = match options.kv_budget {
        Some(size) => size.of(free),
        None => Size::Percent(CARD_PERCENT).of(left).min(most),
    };
    if budget < page_bytes || weight_bytes + work_bytes + budget > free {
        return Err(Error::limit(format!(
            "not enough memory on the GPU: {} for the weights, {} for K/V (a page takes {}) and {} to work in, but only \
             {} is free; use a smaller model, another --kv-budget, or --device cpu",
            Human(weight_bytes),
            Human(budget),
            Human(page_bytes),
            Human(work_bytes),
            Human(free)
        )));
    }
    let pages = |bytes: u64| usize::try_from(bytes / page_bytes).unwrap_or(usize::MAX).min((u32::MAX / 32) as usize);
    options.offload.check()?;
    match options.offload.method {
        offload::Method::None => {
            check_no_host_tier(options)?;
            Ok(CardRoom { pages: pages(budget), device_bytes: None })
        }
        offload::Method::Full
        | offload::Method::Int4
        | offload::Method::H2o
        | offload::Method::Infinigen
        | offload::Method::InfinigenTree => {
            let pages = pages(host_bytes(options, most, free_ram)?);
            let least = match options.offload.method {
                offload::Method::Int4 => store::int4::least_bytes(pages, shape),
                _ => store::least_bytes(pages, shape),
            };
            check_least(budget, least, pages, options.offload.method)?;
            Ok(CardRoom { pages, device_bytes: Some(budget) })
        }
        other => Err(Error::input(format!("--offload {other}: {}", step::METHODS))),
    }
}

/// Bytes of the host tier of a card.
fn host_bytes(options: &EngineOptions, most: u64, free: Option<u64>) -> Result<u64> {
    let bytes = match (options.ram_budget, free) {
        (Some(size), Some(free)) => size.of(free),
        (Some(Size::Bytes(bytes)), None) => bytes,
        (Some(Size::Percent(_)), None) => return Err(unreadable("--ram-budget")),
        (None, free) => free.map_or(most, |free| Size::Percent(DEFAULT_PERCENT).of(free).min(most)),
    };
    match free {
        Some(free) if bytes + SPARE_BYTES > free => Err(Error::limit(format!(
            "not enough memory: {} for K/V in the host tier and {} to work in, but only {} is free; use a smaller \
             --ram-budget",
            Human(bytes),
            Human(SPARE_BYTES),
            Human(free)
        ))),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn devices_are_named_and_a_missing_card_is_told_with_its_remedy() {
        let shape = model::random::open("tiny", 0).unwrap().weights.shape;
        assert!(matches!(Place::choose("cpu", &shape), Ok(Place::Cpu { note: None })));
        let refused = |device: &str| Place::choose(device, &shape).map(drop).unwrap_err();
        for device in ["gpu", "cuda:x", "cuda:", "cuda:all", "\u{1b}[2J"] {
            let error = refused(device);
            assert!(error.exit_code() == 2 && !error.message().contains('\u{1b}'), "{error}");
        }
        if driver::is_present() {
            println!("skipped the rest of devices_are_named: a CUDA driver is here");
            return;
        }
        assert!(matches!(Place::choose("auto", &shape), Ok(Place::Cpu { note: None })));
        for device in ["cuda", "cuda:1"] {
            let error = refused(device);
            assert!(error.exit_code() == 2 && error.message().contains("--device cpu"), "{error}");
        }
    }

    #[test]
    fn a_card_s_budget_leaves_room_for_weights_and_work() {
        let weights = model::random::open("tiny", 0).unwrap().weights;
        let pages = |kv_budget, free| {
            let options = EngineOptions { kv_budget, ..EngineOptions::default() };
            card_room(&weights, &options, free, None).map(|room| room.pages)
        };
        let page = step::page_bytes(&weights.shape);
        let rest = step::weight_bytes(&weights) + step::work_bytes(&weights.shape, step::STEP_ROWS);
        assert_eq!(pages(None, rest + 100 * page).unwrap(), 60);
        assert_eq!(pages(Some(Size::Bytes(99 * page + 1)), rest + 100 * page).unwrap(), 99);
        for (budget, free) in [(None, rest), (Some(Size::Bytes(2 * page)), rest + page), (None, 0)] {
            let error = pages(budget, free).unwrap_err();
            assert!(error.exit_code() == 3 && error.message().contains("--kv-budget"), "{error}");
        }
    }

    #[test]
    fn a_card_s_tier_holds_a_layer_at_least_and_methods_it_lacks_are_refused() {
        let weights = model::random::open("tiny", 0).unwrap().weights;
        let page = step::page_bytes(&weights.shape);
        let room = |method, kv: u64, ram: Option<u64>, free_ram| {
            let offload = offload::Options { method, ..offload::Options::default() };
            let (kv_budget, ram_budget) = (Some(Size::Bytes(kv * page)), ram.map(|ram| Size::Bytes(ram * page)));
            let options = EngineOptions { kv_budget, ram_budget, offload, ..EngineOptions::default() };
            card_room(&weights, &options, 1 << 40, free_ram)
        };
        let full = offload::Method::Full;
        assert_eq!(room(full, 100, Some(100), None).unwrap(), CardRoom { pages: 100, device_bytes: Some(100 * page) });
        let refused = |method, kv, ram, free_ram| {
            let error = room(method, kv, ram, free_ram).unwrap_err();
            (error.exit_code(), error.message().to_string())
        };
        // Packed pages of a layer come beside it.
        let int4 = offload::Method::Int4;
        assert_eq!(room(int4, 70, Some(100), None).unwrap(), CardRoom { pages: 100, device_bytes: Some(70 * page) });
        let (code, message) = refused(int4, 60, Some(100), None);
        assert!(code == 3 && message.contains("--kv-budget"), "{message}");
        // A half of what both layers of this model take.
        assert!(room(full, 50, Some(100), None).is_ok());
        let (code, message) = refused(full, 49, Some(100), None);
        assert!(code == 3 && message.contains("--kv-budget"), "{message}");
        let (code, message) = refused(full, 50, Some(100), Some(100 * page));
        assert!(code == 3 && message.contains("--ram-budget"), "{message}");
        let (code, message) = refused(offload::Method::None, 100, Some(100), None);
        assert!(code == 2 && message.contains("--offload"), "{message}");
        let (code, message) = refused(offload::Method::Oracle, 100, Some(100), None);
        assert!(code == 2 && message.contains("--device cpu"), "{message}");
    }
}
