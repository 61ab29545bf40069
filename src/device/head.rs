//! What a device is asked about a row's logits, and what it says.
//!
//! A sampler rarely needs a whole vocabulary: the best tokens, what all of them sum up to and the logits of a few named
//! ones are enough ([`Glance`]). A card gives just that and keeps the logits; where it turns out not to be enough, the
//! row is fetched ([`Device::fetch`](super::Device::fetch)). A device whose logits lie in host memory anyway says all.

/// Tokens a glance holds, where the vocabulary has as many.
pub const TOP: usize = 128;

/// A row whose logits are asked about.
#[derive(Debug, Clone, Copy)]
pub struct HeadRow<'a> {
    pub row: usize,
    pub want: Want<'a>,
}

#[derive(Debug, Clone, Copy)]
pub enum Want<'a> {
    /// The logits of the whole vocabulary.
    All,
    /// The logits of these tokens, in this order; no others need be computed.
    Only(&'a [u32]),
    /// A glance, or all logits, whichever the device has at hand.
    Glance(Ask<'a>),
}

/// What a glance tells beside the best tokens.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Tokens whose logits are wanted whether they are among the best or not.
    pub tokens: &'a [u32],
    /// Temperature of [`Glance::warm`].
    pub temperature: f32,
}

impl Ask<'_> {
    /// The best tokens alone.
    pub const PLAIN: Ask<'static> = Ask { tokens: &[], temperature: 1.0 };
}

/// What a device says of one row.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// Of the whole vocabulary, or of the tokens that were asked for.
    Logits(Vec<f32>),
    Glance(Glance),
}

/// A row's logits in short.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Glance {
    /// The largest logits with their tokens, largest first, equal ones by token: exactly these, no token outside the list
    /// comes before one inside it. The whole vocabulary where it is small.
    pub top: Vec<(u32, f32)>,
    /// ln Σ exp(logit) over the vocabulary. Not finite where a logit is not a number.
    pub total: f64,
    /// Σ exp((logit - largest) / temperature) over the vocabulary, at the temperature that was asked for.
    pub warm: f64,
    /// The logits of the tokens that were asked for, in their order.
    pub asked: Vec<f32>,
}

impl Said {
    /// The logits, where the device gave them.
    pub fn logits(&self) -> Option<&[f32]> {
        match self {
            Self::Logits(logits) => Some(logits),
            Self::Glance(_) => None,
        }
    }
}

impl HeadRow<'_> {
    /// A row's whole vocabulary.
    pub fn all(row: usize) -> HeadRow<'static> {
        HeadRow { row, want: Want::All }
    }

    /// Tokens that are named.
    pub fn named(&self) -> &[u32] {
        match self.want {
            Want::All => &[],
            Want::Only(tokens) => tokens,
            Want::Glance(ask) => ask.tokens,
        }
    }
}
