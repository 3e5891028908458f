//! The interface of the network's ops: one set for the host, one for CUDA devices.
//!
//! Operands are views of memory on the set's device; shapes follow from the [`Size`] that a set was
//! made for. A set owns the workspaces of its ops, and may fuse: a residual and GELU are epilogues
//! of products. On a CUDA device an op is only started when its call returns, in the order of the
//! device's stream.

use std::ops::Range;

use device::{Allocator, View, ViewMut};

use super::linear::Linear;
use super::size::Size;
use crate::ops::matmul::Sums;
use crate::ops::norm::NormBackward;
use crate::ops::rope::Direction;
use crate::ops::{Affine, AffineMut, Element};
use crate::tuning::ProductTuner;
use crate::{Batch, Error, ModelConfig};

/// The type of an op set's gradients of weights, statistics and scales.
pub(crate) type Wide<O> = <<O as Ops>::Element as Element>::Wide;

/// The ops of a network on one device, for one element.
pub(crate) trait Ops: Send + Sized {
    /// Element of weights and activations.
    type Element: Element;

    /// True if [`cross_entropy`](Self::cross_entropy) with a scale computes the logits' gradient as
    /// well, instead of [`cross_entropy_backward`](Self::cross_entropy_backward).
    const FUSES_CROSS_ENTROPY: bool;

    /// Allocates workspaces, and compiles what has to be compiled unless the allocator only counts.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a model that these ops do not compute; those of the device.
    fn new(allocator: &Allocator, config: &ModelConfig, size: &Size) -> Result<Self, Error>;

    /// Operations that are computed in another way than usual, because a library refused them.
    fn fallbacks(&self) -> Vec<String> {
        Vec::new()
    }

    /// The tuner of their products, where algorithms can be chosen.
    fn tuner(&mut self) -> Option<&mut dyn ProductTuner> {
        None
    }

    /// Brings the tokens of a micro-batch to the device: before everything else on it.
    fn begin(&mut self, batch: Batch<'_>) -> Result<(), Error>;

    /// Sets every element to zero.
    fn clear<T: Element>(&mut self, values: ViewMut<'_, T>) -> Result<(), Error>;

    /// Writes `y` (N, C): rows of the tables, summed.
    fn embedding(
        &mut self,
        y: ViewMut<'_, Self::Element>,
        tokens: &[u32],
        tables: EmbeddingTables<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Adds the rows of `dx` (N, C) to the rows of the tables' gradients.
    fn embedding_backward(
        &mut self,
        tables: EmbeddingGradients<'_, Wide<Self>>,
        dx: View<'_, Self::Element>,
        tokens: &[u32],
    ) -> Result<(), Error>;

    /// Writes `y` (N, C) and the statistics of each row.
    fn norm(
        &mut self,
        y: ViewMut<'_, Self::Element>,
        stats: ViewMut<'_, Wide<Self>>,
        x: View<'_, Self::Element>,
        parameters: Affine<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Writes `y` (N, C) again, as [`norm`](Self::norm) did, whose statistics stay. Only where
    /// outputs are not saved.
    fn recompute_norm(
        &mut self,
        y: ViewMut<'_, Self::Element>,
        stats: ViewMut<'_, Wide<Self>>,
        x: View<'_, Self::Element>,
        parameters: Affine<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// All gradients of a norm: those of its parameters are written or added.
    fn norm_backward(
        &mut self,
        operands: NormBackward<'_, Self::Element>,
        gradients: AffineMut<'_, Wide<Self>>,
        sums: Sums,
    ) -> Result<(), Error>;

    /// Writes `y` (N, O) = `x` (N, I) W^T + b, with the epilogue.
    fn linear(
        &mut self,
        linear: Linear,
        y: ViewMut<'_, Self::Element>,
        x: View<'_, Self::Element>,
        parameters: Affine<'_, Self::Element>,
        epilogue: Epilogue<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Writes `dx` (N, I) = `dy` (N, O) W. Where the layer's input was the GELU of `before_gelu`
    /// (N, I), `dx` is the gradient of that argument; if outputs are not saved, the value of GELU
    /// replaces it.
    fn linear_input(
        &mut self,
        linear: Linear,
        dx: ViewMut<'_, Self::Element>,
        dy: View<'_, Self::Element>,
        weight: View<'_, Self::Element>,
        before_gelu: Option<ViewMut<'_, Self::Element>>,
    ) -> Result<(), Error>;

    /// Writes or adds the gradient of a weight, dW (O, I) = dY^T X.
    fn linear_weight(
        &mut self,
        linear: Linear,
        dweight: ViewMut<'_, Wide<Self>>,
        dy: View<'_, Self::Element>,
        x: View<'_, Self::Element>,
        sums: Sums,
    ) -> Result<(), Error>;

    /// Writes or adds the gradient of a bias: the column sums of dY. For layers that write to the
    /// stream, `dy` is what the last [`norm_backward`](Self::norm_backward) wrote.
    fn linear_bias(
        &mut self,
        linear: Linear,
        dbias: ViewMut<'_, Wide<Self>>,
        dy: View<'_, Self::Element>,
        sums: Sums,
    ) -> Result<(), Error>;

    /// Rotates the queries and keys of `qkv` in place. Only in Llama.
    fn rope(&mut self, qkv: ViewMut<'_, Self::Element>, direction: Direction) -> Result<(), Error>;

    /// Writes the outputs of the heads (N, H D) and their log sums (B, H, T).
    fn attention(
        &mut self,
        output: ViewMut<'_, Self::Element>,
        log_sums: ViewMut<'_, Wide<Self>>,
        qkv: View<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Writes `dqkv`.
    fn attention_backward(
        &mut self,
        dqkv: ViewMut<'_, Self::Element>,
        doutput: View<'_, Self::Element>,
        saved: AttentionSaved<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Writes `hidden` (N, F) from `gate_up` (N, 2 F). Only in Llama, as what follows.
    fn swiglu(
        &mut self,
        hidden: ViewMut<'_, Self::Element>,
        gate_up: View<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Writes `hidden` (N, F) again, and prepares `gate_up` for
    /// [`swiglu_backward`](Self::swiglu_backward). Only where outputs are not saved.
    fn recompute_swiglu(
        &mut self,
        hidden: ViewMut<'_, Self::Element>,
        gate_up: ViewMut<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Replaces `gate_up` (N, 2 F) by its gradient.
    fn swiglu_backward(
        &mut self,
        gate_up: ViewMut<'_, Self::Element>,
        dhidden: View<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Computes the logits of a chunk, in the set's workspace, from `hidden` (tokens, C) and the
    /// head's `table` (V and padding, C).
    fn logits(
        &mut self,
        chunk: Chunk,
        hidden: View<'_, Self::Element>,
        table: View<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Adds the losses of a chunk to those of the micro-batch. A scale announces that the gradient
    /// of `scale` times the loss follows.
    fn cross_entropy(
        &mut self,
        chunk: Chunk,
        targets: &[u32],
        scale: Option<Wide<Self>>,
    ) -> Result<(), Error>;

    /// Replaces the logits of a chunk by the gradient of `scale` times its loss. Only where
    /// [`FUSES_CROSS_ENTROPY`](Self::FUSES_CROSS_ENTROPY) is false.
    fn cross_entropy_backward(
        &mut self,
        _chunk: Chunk,
        _targets: &[u32],
        _scale: Wide<Self>,
    ) -> Result<(), Error> {
        unreachable!("the loss computes the gradient")
    }

    /// Writes `dhidden` (tokens, C), from the gradient of the logits.
    fn head_input(
        &mut self,
        chunk: Chunk,
        dhidden: ViewMut<'_, Self::Element>,
        table: View<'_, Self::Element>,
    ) -> Result<(), Error>;

    /// Writes or adds the gradient of the head's table, from that of the logits.
    fn head_weight(
        &mut self,
        chunk: Chunk,
        dtable: ViewMut<'_, Wide<Self>>,
        hidden: View<'_, Self::Element>,
        sums: Sums,
    ) -> Result<(), Error>;

    /// Adds the sum of the losses of all chunks of a micro-batch to `loss`, one element.
    fn add_losses(&mut self, loss: ViewMut<'_, f64>) -> Result<(), Error>;

    /// Waits for the device, and returns the only element of `value`.
    fn read(&mut self, value: View<'_, f64>) -> Result<f64, Error>;
}

/// Token table (V, C) and, in the GPT family, position table (T or more, C).
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddingTables<'a, E: device::Element> {
    pub(crate) tokens: View<'a, E>,
    pub(crate) positions: Option<View<'a, E>>,
}

/// The gradients of both tables.
#[derive(Debug)]
pub(crate) struct EmbeddingGradients<'a, T: device::Element> {
    pub(crate) tokens: ViewMut<'a, T>,
    pub(crate) positions: Option<ViewMut<'a, T>>,
}

/// Operation of a linear layer on its sums before they are rounded and written.
#[derive(Debug)]
pub(crate) enum Epilogue<'a, E: device::Element> {
    /// Nothing but the bias.
    Store,
    /// Adds a matrix (N, O).
    Residual(View<'a, E>),
    /// Writes the GELU of what is written as well (N, O).
    Gelu(ViewMut<'a, E>),
}

/// Values of attention's forward that backward needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionSaved<'a, E: Element> {
    /// (N, (H + 2 K) D), rotated.
    pub(crate) qkv: View<'a, E>,
    /// (N, H D).
    pub(crate) output: View<'a, E>,
    /// (B, H, T).
    pub(crate) log_sums: View<'a, E::Wide>,
}

/// Consecutive tokens whose logits exist at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk {
    /// The first token.
    pub(crate) start: usize,
    /// Number of tokens.
    pub(crate) tokens: usize,
}

impl Chunk {
    /// The tokens, by their rows.
    pub(crate) fn rows(self) -> Range<usize> {
        self.start..self.start + self.tokens
    }

    /// Elements of the tokens in a matrix of so many columns.
    pub(crate) fn elements(self, columns: usize) -> Range<usize> {
        self.start * columns..(self.start + self.tokens) * columns
    }
}
