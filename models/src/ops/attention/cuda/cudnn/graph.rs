//! Causal attention and its gradient as cuDNN's graphs, over the layout of this crate: queries,
//! keys and values are columns of one tensor, which strides and addresses select.

use device::cuda::cudnn::{
    Attribute, Builder, ComparisonMode, Cudnn, DataType, Descriptor, Kind, Refusal,
};

use super::part::Part;
use super::plan::Target;
use crate::ops::attention::Shape;

/// Unique ids of the tensors of a plan.
pub(super) mod unique_id {
    pub(crate) const QUERY: i64 = 1;
    pub(crate) const KEY: i64 = 2;
    pub(crate) const VALUE: i64 = 3;
    pub(crate) const OUTPUT: i64 = 4;
    pub(crate) const STATS: i64 = 5;
    pub(crate) const SCALE: i64 = 6;
    pub(crate) const MASKED_SCORE: i64 = 7;
    pub(crate) const DOUTPUT: i64 = 8;
    pub(crate) const DQUERY: i64 = 9;
    pub(crate) const DKEY: i64 = 10;
    pub(crate) const DVALUE: i64 = 11;
    /// Scores before and after the mask, which never are in memory.
    pub(super) const SCORES: i64 = 12;
    pub(super) const CAUSAL_SCORES: i64 = 13;
}

/// Addresses are multiples of so many bytes, where rows are.
const ALIGNMENT_BYTES: usize = 16;

/// Storage of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    Device,
    /// One number, which is read from the host when the plan is executed.
    Host,
    /// Within the plan.
    Virtual,
}

/// Dimensions and strides, in elements: sequences, heads, tokens, columns.
#[derive(Debug, Clone, Copy)]
struct Extent {
    dimensions: [usize; 4],
    strides: [usize; 4],
    /// Every address is a multiple of so many bytes.
    alignment_bytes: usize,
}

/// The tensors of a part of an attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Graphs<'a> {
    pub(super) cudnn: Cudnn,
    pub(super) shape: &'a Shape,
    pub(super) part: Part,
}

impl Graphs<'_> {
    /// O and the log-sum-exps of scores from Q, K and V.
    pub(super) fn forward(&self, target: &Target) -> Result<Descriptor, Refusal> {
        let operation = self
            .operation(Kind::SDPA_FORWARD)?
            .descriptor(Attribute::SDPA_FORWARD_Q, &self.query(unique_id::QUERY)?)?
            .descriptor(Attribute::SDPA_FORWARD_K, &self.key(unique_id::KEY)?)?
            .descriptor(Attribute::SDPA_FORWARD_V, &self.key(unique_id::VALUE)?)?
            .descriptor(Attribute::SDPA_FORWARD_O, &self.output(unique_id::OUTPUT)?)?
            .descriptor(Attribute::SDPA_FORWARD_STATS, &self.stats()?)?
            .descriptor(Attribute::SDPA_FORWARD_SCALE, &self.number(unique_id::SCALE)?)?
            .descriptor(Attribute::SDPA_FORWARD_SUBGRAPH, &self.causal_mask()?)?
            .integers(Attribute::SDPA_FORWARD_SUBGRAPH_INPUT, &[unique_id::SCORES])?
            .integers(Attribute::SDPA_FORWARD_SUBGRAPH_OUTPUT, &[unique_id::CAUSAL_SCORES])?
            .finalize()?;
        target.in_graph(self.operation(Kind::OPERATION_GRAPH)?, operation)
    }

    /// The gradients of Q, K and V from that of O and what forward read and wrote.
    pub(super) fn backward(&self, target: &Target) -> Result<Descriptor, Refusal> {
        let operation = self
            .operation(Kind::SDPA_BACKWARD)?
            .descriptor(Attribute::SDPA_BACKWARD_Q, &self.query(unique_id::QUERY)?)?
            .descriptor(Attribute::SDPA_BACKWARD_K, &self.key(unique_id::KEY)?)?
            .descriptor(Attribute::SDPA_BACKWARD_V, &self.key(unique_id::VALUE)?)?
            .descriptor(Attribute::SDPA_BACKWARD_O, &self.output(unique_id::OUTPUT)?)?
            .descriptor(Attribute::SDPA_BACKWARD_DO, &self.output(unique_id::DOUTPUT)?)?
            .descriptor(Attribute::SDPA_BACKWARD_STATS, &self.stats()?)?
            .descriptor(Attribute::SDPA_BACKWARD_SCALE, &self.number(unique_id::SCALE)?)?
            .descriptor(Attribute::SDPA_BACKWARD_DQ, &self.query(unique_id::DQUERY)?)?
            .descriptor(Attribute::SDPA_BACKWARD_DK, &self.key(unique_id::DKEY)?)?
            .descriptor(Attribute::SDPA_BACKWARD_DV, &self.key(unique_id::DVALUE)?)?
            .descriptor(Attribute::SDPA_BACKWARD_SUBGRAPH, &self.causal_mask()?)?
            .integers(Attribute::SDPA_BACKWARD_SUBGRAPH_INPUT, &[unique_id::SCORES])?
            .integers(Attribute::SDPA_BACKWARD_SUBGRAPH_OUTPUT, &[unique_id::CAUSAL_SCORES])?
            .finalize()?;
        target.in_graph(self.operation(Kind::OPERATION_GRAPH)?, operation)
    }

    /// Mask of scores before the softmax: replaces those of keys after the query.
    fn causal_mask(&self) -> Result<Descriptor, Refusal> {
        let mask = self
            .operation(Kind::DIAGONAL_BAND_MASK)?
            .descriptor(Attribute::DIAGONAL_BAND_MASK_X, &self.scores(unique_id::SCORES)?)?
            .descriptor(Attribute::DIAGONAL_BAND_MASK_B, &self.number(unique_id::MASKED_SCORE)?)?
            .descriptor(Attribute::DIAGONAL_BAND_MASK_Y, &self.scores(unique_id::CAUSAL_SCORES)?)?
            .comparison(Attribute::DIAGONAL_BAND_MASK_COMPARISON, ComparisonMode::GREATER_OR_EQUAL)?
            .finalize()?;
        self.operation(Kind::OPERATION_GRAPH)?
            .descriptors(Attribute::OPERATION_GRAPH_OPERATIONS, &[mask])?
            .finalize()
    }

    fn operation(&self, kind: Kind) -> Result<Builder, Refusal> {
        Builder::new(self.cudnn, kind)
    }

    /// Columns of (B, T, (H + 2 K) D), one for each query head of the part.
    fn query(&self, unique_id: i64) -> Result<Descriptor, Refusal> {
        self.columns(unique_id, self.part.heads(self.shape), self.shape.qkv_width())
    }

    /// Columns of (B, T, (H + 2 K) D), one for each key head of the part: keys or values.
    fn key(&self, unique_id: i64) -> Result<Descriptor, Refusal> {
        self.columns(unique_id, self.part.key_value_heads, self.shape.qkv_width())
    }

    /// Columns of (B, T, H D).
    fn output(&self, unique_id: i64) -> Result<Descriptor, Refusal> {
        self.columns(unique_id, self.part.heads(self.shape), self.shape.width())
    }

    fn columns(
        &self,
        unique_id: i64,
        heads: usize,
        row_elements: usize,
    ) -> Result<Descriptor, Refusal> {
        let Shape { tokens, head_width, .. } = *self.shape;
        let extent = Extent {
            dimensions: [self.part.sequences, heads, tokens, head_width],
            strides: [tokens * row_elements, head_width, row_elements, 1],
            alignment_bytes: ALIGNMENT_BYTES,
        };
        self.tensor(unique_id, DataType::BF16, Storage::Device, extent)
    }

    /// (B, H, T): a part is packed, since it has one sequence or all heads. It starts at any head.
    fn stats(&self) -> Result<Descriptor, Refusal> {
        let heads = self.part.heads(self.shape);
        let tokens = self.shape.tokens;
        let extent = Extent {
            dimensions: [self.part.sequences, heads, tokens, 1],
            strides: [heads * tokens, tokens, 1, 1],
            alignment_bytes: if tokens.is_multiple_of(4) { ALIGNMENT_BYTES } else { 4 },
        };
        self.tensor(unique_id::STATS, DataType::F32, Storage::Device, extent)
    }

    fn scores(&self, unique_id: i64) -> Result<Descriptor, Refusal> {
        let heads = self.part.heads(self.shape);
        let tokens = self.shape.tokens;
        let extent = Extent {
            dimensions: [self.part.sequences, heads, tokens, tokens],
            strides: [heads * tokens * tokens, tokens * tokens, tokens, 1],
            alignment_bytes: ALIGNMENT_BYTES,
        };
        self.tensor(unique_id, DataType::F32, Storage::Virtual, extent)
    }

    fn number(&self, unique_id: i64) -> Result<Descriptor, Refusal> {
        let alignment_bytes = size_of::<f32>();
        let extent = Extent { dimensions: [1; 4], strides: [1; 4], alignment_bytes };
        self.tensor(unique_id, DataType::F32, Storage::Host, extent)
    }

    fn tensor(
        &self,
        unique_id: i64,
        data_type: DataType,
        storage: Storage,
        extent: Extent,
    ) -> Result<Descriptor, Refusal> {
        let integers = |values: [usize; 4]| values.map(|value| value as i64);
        let tensor = self
            .operation(Kind::TENSOR)?
            .data_type(Attribute::TENSOR_DATA_TYPE, data_type)?
            .integers(Attribute::TENSOR_DIMENSIONS, &integers(extent.dimensions))?
            .integers(Attribute::TENSOR_STRIDES, &integers(extent.strides))?
            .integers(Attribute::TENSOR_UNIQUE_ID, &[unique_id])?
            .integers(Attribute::TENSOR_BYTE_ALIGNMENT, &[extent.alignment_bytes as i64])?;
        let tensor = match storage {
            Storage::Device => tensor,
            Storage::Host => tensor.flag(Attribute::TENSOR_IS_BY_VALUE, true)?,
            Storage::Virtual => tensor.flag(Attribute::TENSOR_IS_VIRTUAL, true)?,
        };
        tensor.finalize()
    }
}
