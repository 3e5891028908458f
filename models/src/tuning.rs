//! Algorithms of matrix products that were chosen by measurement.

use serde::{Deserialize, Serialize};

/// The fastest algorithm of a product.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedProduct {
    /// Dimensions, transposes, strides, formats and epilogue of the product.
    pub product: String,
    /// The library's description of the algorithm, for the same version of the library and the same
    /// kind of device alone.
    pub algorithm: [u64; 8],
    /// Position among those that the library offers, from 0.
    pub position: usize,
    /// Best time of the first algorithm.
    pub first_ns: u64,
    /// Best time of this one.
    pub chosen_ns: u64,
}

/// Products of an engine whose algorithms can be chosen by measurement.
pub trait ProductTuner {
    /// Descriptions of all products, sorted and each once.
    fn products(&mut self) -> Vec<String>;

    /// Lets every product time the algorithms that its library offers when it is next computed.
    fn begin(&mut self);

    /// The fastest algorithm of each product that was computed since [`begin`](Self::begin), which
    /// are not in use yet. Of products that are alike there is one.
    fn measured(&mut self) -> Vec<TunedProduct>;

    /// Returns whether there is an algorithm of every product, and the library accepts it.
    fn accepts(&mut self, tuned: &[TunedProduct]) -> bool;

    /// Uses the algorithms from now on. The bits of results depend on them.
    fn adopt(&mut self, tuned: &[TunedProduct]);
}
