//! K/V offload: which method decides what crosses the link between the tiers of K/V memory (`device::tiers`).
//!
//! | method | the device holds | a step fetches |
//! |---|---|---|
//! | `none` | everything | nothing |
//! | `full` | what the budget holds | all pages that the step's rows see and that are not there, layer by layer (FlexGen) |
//! | `int4` | what the budget holds | the same in four bits a number (FlexGen) |
//! | `h2o` | what the budget holds | rows of the tokens that had the most attention; others are gone for good (H2O) |
//! | `infinigen` | whole layers, partial keys | for each row alone the tokens it is expected to look at (InfiniGen) |
//! | `infinigen-tree` | those, and what was fetched | the same tokens, once for all branches, where they are not there |
//!
//! Managed memory (UVM) is a baseline of the papers only: it is described, not built.

pub mod select;
pub mod skew;

use crate::base::size::Size;
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::device::speculation::{Fetch, Look, Selection, Source};
use crate::kv::residency::Eviction;
use select::Select;
use skew::Skew;
use std::fmt;
use std::str::FromStr;

/// Offload methods by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    #[default]
    None,
    Full,
    Int4,
    H2o,
    Infinigen,
    InfinigenTree,
    /// Tokens drawn by chance: the control, for benchmarks.
    Random,
    /// Tokens by exact scores: the best that a selection can be, for benchmarks.
    Oracle,
}

impl Method {
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Full,
        Self::Int4,
        Self::H2o,
        Self::Infinigen,
        Self::InfinigenTree,
        Self::Random,
        Self::Oracle,
    ];

    /// Those that a run may use.
    pub const LIVE: [Self; 6] = [Self::None, Self::Full, Self::Int4, Self::H2o, Self::Infinigen, Self::InfinigenTree];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Full => "full",
            Self::Int4 => "int4",
            Self::H2o => "h2o",
            Self::Infinigen => "infinigen",
            Self::InfinigenTree => "infinigen-tree",
            Self::Random => "random",
            Self::Oracle => "oracle",
        }
    }

    /// Whether it guesses scores, and so needs the model's skew.
    pub fn speculates(self) -> bool {
        matches!(self, Self::Infinigen | Self::InfinigenTree)
    }

    /// Whether rows attend to a part of what they could.
    pub fn selects(self) -> bool {
        self.speculates() || matches!(self, Self::H2o | Self::Random | Self::Oracle)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|m| m.name()).collect();
            let (name, names) = (sanitize_line(name), names.join(", "));
            Error::input(format!("offload method `{name}` is unknown; there are {names}"))
        })
    }
}

/// A method and its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    pub method: Method,
    /// Tokens whose expected score is within this of the largest are fetched; infinite: as many as `max_fetch` says.
    pub alpha: f32,
    /// The share of a key's columns that scores are guessed by.
    pub ratio: f64,
    /// The share of its path that a row may fetch in a layer; what `h2o` keeps.
    pub max_fetch: f32,
    /// Device memory that fetched rows may take; `None`: what the budget leaves.
    pub capacity: Option<Size>,
    pub eviction: Eviction,
    /// `None`: as [`Device::usual_look`](crate::device::Device::usual_look) says.
    pub look: Option<Look>,
    /// The first layers that attend to everything; `None`: as many as the model's guesses are measured to be bad in.
    pub whole_layers: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            method: Method::None,
            alpha: 4.0,
            ratio: 0.75,
            max_fetch: 0.2,
            capacity: None,
            eviction: Eviction::Counter,
            look: None,
            whole_layers: None,
        }
    }
}

impl Options {
    /// Refuses what has no meaning.
    pub fn check(&self) -> Result<()> {
        let refuse =
            |flag: &str, value: f64, what: &str| Err(Error::input(format!("--offload-{flag} {value}: {what}")));
        if self.alpha.is_nan() || self.alpha <= 0.0 {
            return refuse("alpha", f64::from(self.alpha), "give a number above 0, or inf");
        }
        if !(self.ratio > 0.0 && self.ratio <= 1.0) {
            return refuse("ratio", self.ratio, "give a share above 0 and up to 1, such as 0.75");
        }
        if !(self.max_fetch > 0.0 && self.max_fetch <= 1.0) {
            return refuse("max-fetch", f64::from(self.max_fetch), "give a share above 0 and up to 1, such as 0.2");
        }
        Ok(())
    }

    /// What a device of so many layers, which would guess by `usual`, is told. `skew` is the model's, where the method speculates.
    pub fn fetch(&self, skew: Option<&Skew>, layers: usize, usual: Look) -> Result<Fetch> {
        let plain = |source, random| {
            let choose = Box::new(Select { alpha: self.alpha, max_fetch: self.max_fetch, random });
            let whole_layers = self.whole_layers.unwrap_or(0);
            Selection { source, choose, whole_layers, share: true, eviction: self.eviction, capacity: self.capacity }
        };
        let selection = match self.method {
            Method::None | Method::Full => return Ok(Fetch::Full),
            Method::Int4 => return Ok(Fetch::Int4),
            Method::H2o => plain(Source::Heavy { keep: self.max_fetch }, false),
            Method::Random => plain(Source::Exact, true),
            Method::Oracle => plain(Source::Exact, false),
            Method::Infinigen | Method::InfinigenTree => {
                let skew = skew.ok_or_else(|| Error::fault("the model was not skewed"))?;
                let speculation = skew.speculation(self.ratio, self.whole_layers);
                let (whole_layers, share) = (speculation.whole_layers, self.method == Method::InfinigenTree);
                let look = self.look.unwrap_or(usual);
                if look != Look::Same && whole_layers == 0 {
                    return Err(Error::input(
                        "--offload-whole-layers 0: the first layer has none before it that could look ahead; give at \
                         least 1, or --offload-look same",
                    ));
                }
                Selection { whole_layers, share, ..plain(Source::Partial(speculation, look), false) }
            }
        };
        if selection.whole_layers >= layers {
            return Err(Error::input(format!(
                "--offload-whole-layers {}: the model has {layers} layers, and one at least must select",
                selection.whole_layers
            )));
        }
        Ok(Fetch::Selected(selection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_parameters_without_meaning_refused() {
        for method in Method::ALL {
            assert_eq!(method.name().parse::<Method>().unwrap(), method);
        }
        let error = "uvm\u{1b}".parse::<Method>().unwrap_err();
        assert!(error.message().contains("infinigen-tree") && !error.message().contains('\u{1b}'), "{error}");
        assert!(Options::default().check().is_ok());
        for (options, flag) in [
            (Options { alpha: 0.0, ..Options::default() }, "alpha"),
            (Options { alpha: f32::NAN, ..Options::default() }, "alpha"),
            (Options { ratio: 1.5, ..Options::default() }, "ratio"),
            (Options { max_fetch: 0.0, ..Options::default() }, "max-fetch"),
        ] {
            let error = options.check().unwrap_err();
            assert!(error.exit_code() == 2 && error.message().contains(flag), "{error}");
        }
    }

    #[test]
    fn whole_layers_leave_one_that_selects_and_one_to_look_ahead_from() {
        let options = |method, whole_layers| Options { method, whole_layers, ..Options::default() };
        let fetch = |method, whole_layers| options(method, whole_layers).fetch(None, 4, Look::Half);
        assert!(matches!(fetch(Method::Full, None), Ok(Fetch::Full)));
        assert!(matches!(fetch(Method::H2o, Some(3)), Ok(Fetch::Selected(_))));
        assert!(fetch(Method::Oracle, Some(4)).is_err() && fetch(Method::Infinigen, None).is_err());
    }
}
