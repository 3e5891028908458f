//! Rows forward. Backward adds the rows of each distinct token in their order: the host lists them,
//! so that nothing is added atomically.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use crate::ops::kernels::{self, CudaElement};

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct Embedding {
    forward: Kernel,
    backward_tokens: Kernel,
    backward_positions: Kernel,
}

/// The rows of every distinct token of a micro-batch, on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenGroups<'a> {
    /// Rows, those of one token after each other, ascending.
    pub(crate) order: View<'a, u32>,
    /// Start of each token's rows in `order`, and the end of the last rows.
    pub(crate) starts: View<'a, u32>,
    /// The tokens.
    pub(crate) ids: View<'a, u32>,
}

impl Embedding {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::EMBEDDING, E::FORMAT)?;
        Ok(Self {
            forward: module.kernel("embedding_forward")?,
            backward_tokens: module.kernel("embedding_backward_tokens")?,
            backward_positions: module.kernel("embedding_backward_positions")?,
        })
    }

    /// Writes `y` (B T, C): the rows of the tokens, and of the positions where there are any.
    pub(crate) fn forward<E: CudaElement>(
        &self,
        mut y: ViewMut<'_, E>,
        tokens: View<'_, u32>,
        token_table: View<'_, E>,
        position_table: Option<View<'_, E>>,
        sequence_tokens: usize,
    ) -> Result<(), Error> {
        let rows = tokens.len();
        let y_elements = y.len();
        let width = y_elements / rows;
        assert_eq!(y_elements, rows * width, "a row for each token");
        let launch = self.forward.launch(Grid::row(rows, 128)).writes(&mut y);
        let launch = launch.reads(tokens).reads_part(token_table, y_elements);
        let launch = match position_table {
            Some(table) => launch.reads_part(table, y_elements),
            None => launch.null(),
        };
        // SAFETY: embedding_forward(y, tokens, token table, position table, rows, sequence tokens,
        // width); the tokens are below V, which the caller checked.
        unsafe { launch.int(rows).int(sequence_tokens).int(width).run() }
    }

    /// Adds the rows of `dx` (B T, C) to the rows of their tokens in `dtable` (V, C).
    pub(crate) fn backward_tokens<E: CudaElement>(
        &self,
        mut dtable: ViewMut<'_, f32>,
        dx: View<'_, E>,
        groups: TokenGroups<'_>,
        width: usize,
    ) -> Result<(), Error> {
        let TokenGroups { order, starts, ids } = groups;
        assert_eq!(order.len() * width, dx.len(), "every row is listed");
        assert_eq!(starts.len(), ids.len() + 1, "a start for each token and an end");
        let chunks = width.div_ceil(32 * E::PACK);
        let launch = self.backward_tokens.launch(Grid::of([ids.len(), chunks, 1], 256));
        let launch = launch.updates_part(&mut dtable, ids.len() * width).reads(dx);
        let launch = launch.reads(order).reads(starts).reads(ids);
        // SAFETY: embedding_backward_tokens(dtable, dx, order, starts, ids, width), a token for
        // each block in x; the tokens are below V, which the caller checked.
        unsafe { launch.int(width).run() }
    }

    /// Adds the sums of `dx` (B T, C) over sequences to `dtable` (T, C).
    pub(crate) fn backward_positions<E: CudaElement>(
        &self,
        mut dtable: ViewMut<'_, f32>,
        dx: View<'_, E>,
        sequence_tokens: usize,
        width: usize,
    ) -> Result<(), Error> {
        let sequences = dx.len() / (sequence_tokens * width);
        assert!(dtable.len() >= sequence_tokens * width, "a row for each position");
        let launch = self.backward_positions.launch(Grid::row(sequence_tokens, 128));
        let launch = launch
            .updates_part(&mut dtable, sequence_tokens * width)
            .reads(dx)
            .int(sequences)
            .int(sequence_tokens);
        // SAFETY: embedding_backward_positions(dtable, dx, sequences, sequence tokens, width), a
        // position for each block; the length was checked.
        unsafe { launch.int(width).run() }
    }
}
