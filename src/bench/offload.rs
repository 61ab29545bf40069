//! `totara bench offload`: what crosses the link, and what it costs in quality, method by method on the same tree and text.
//!
//! One model is loaded; between methods its device begins anew with another way to fetch. [`links`] measures bytes and
//! time over the steps of a tree, [`quality`] perplexity and agreement over windows of a text.

use crate::base::Result;
use crate::base::size::Size;
use crate::device::speculation::{Fetch, Look};
use crate::engine::Limits;
use crate::kv::PAGE_TOKENS;
use crate::lm::engine::{EngineOptions, Loaded, Sample, load};
use crate::model::Model;
use crate::model::llama::Llama;
use crate::offload::skew::{Skew, columns_of};
use crate::offload::{Method, Options};

pub mod links;
pub mod quality;

/// A method as it is measured: `infinigen` comes in more than one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub method: Method,
    /// `None`: as the flag says, or the device.
    pub look: Option<Look>,
}

impl Case {
    /// The methods named, each as the flags have it; in the looks that speculation has where `looks` says so.
    pub fn list(methods: &[Method], looks: bool) -> Vec<Self> {
        let mut cases = Vec::new();
        for &method in methods {
            match looks && method.speculates() {
                true => {
                    cases.extend([Look::Ahead, Look::Half, Look::Same].map(|look| Self { method, look: Some(look) }))
                }
                false => cases.push(Self { method, look: None }),
            }
        }
        cases
    }

    /// With the look that it has.
    fn name(&self, look: Look) -> String {
        if self.method.speculates() { format!("{}, {look}", self.method) } else { self.method.to_string() }
    }
}

/// A model on a device that can begin anew with any method.
struct Bench {
    llama: Llama,
    limits: Limits,
    device: String,
    /// Where a method that is measured guesses.
    skew: Option<Skew>,
    layers: usize,
    /// Bytes of K/V of one token over all layers.
    token_bytes: u64,
    /// A token's partial keys, as a share of its K/V.
    partial_share: f64,
    options: Options,
}

impl Bench {
    /// Room for `pages` pages in the host tier, and more than enough in the device tier until a method is chosen.
    fn load(model: Model, options: &EngineOptions, cases: &[Case], pages: usize) -> Result<Self> {
        let shape = model.weights.shape.clone();
        let token_bytes = (shape.kv_numbers_per_token() * options.kv.bytes()) as u64;
        let host = (pages * PAGE_TOKENS) as u64 * token_bytes;
        // The skew is made for all methods that select, so that they have the same layers whole.
        let selects = cases.iter().any(|case| case.method.selects());
        let method = if selects { Method::InfinigenTree } else { Method::Full };
        // Reading the sample text takes a few pages of its own where the tree has fewer.
        let options = EngineOptions {
            kv_budget: Some(Size::Bytes(2 * host + (64 << 20))),
            ram_budget: Some(Size::Bytes(host)),
            offload: Options { method, ..options.offload },
            ..options.clone()
        };
        let sample = Sample::of(&model, &options)?;
        let Loaded { llama, limits, device, skew } = load(model.weights, &options, sample.as_ref())?;
        let offload = options.offload;
        let columns = columns_of(offload.ratio, shape.head_size);
        let row_bytes = token_bytes as f64 / (shape.layers * shape.kv_heads) as f64;
        let partial_share = llama.device().partial_token_bytes(columns) as f64 / row_bytes;
        Ok(Self { llama, limits, device, skew, layers: shape.layers, token_bytes, partial_share, options: offload })
    }

    /// Layers that all methods which select read whole, so that they are compared over the same ones.
    fn whole_layers(&self) -> usize {
        self.options.whole_layers.unwrap_or_else(|| self.skew.as_ref().map_or(0, Skew::whole_layers))
    }

    fn fetch(&self, case: Case, options: Options) -> Result<Fetch> {
        let (method, look, whole_layers) = (case.method, self.look(case), Some(self.whole_layers()));
        Options { method, whole_layers, ..options }.fetch(self.skew.as_ref(), self.layers, look)
    }

    fn look(&self, case: Case) -> Look {
        case.look.or(self.options.look).unwrap_or(self.llama.device().usual_look())
    }

    fn name(&self, case: Case) -> String {
        case.name(self.look(case))
    }
}
