//! The tokens of a micro-batch on the device, and the rows of each distinct token.

use device::cuda::{Cuda, Error, Staging};
use device::{Allocator, DeviceBuffer, View};

use crate::Batch;
use crate::ops::embedding::cuda::TokenGroups;

/// Tokens on the device: (B, T) each.
#[derive(Debug)]
pub(super) struct Tokens {
    inputs: DeviceBuffer<u32>,
    targets: DeviceBuffer<u32>,
    /// Rows by token, where each token's start, and the tokens.
    order: DeviceBuffer<u32>,
    starts: DeviceBuffer<u32>,
    ids: DeviceBuffer<u32>,
}

/// The host's side.
#[derive(Debug)]
pub(super) struct TokenSender {
    inputs: Staging<u32>,
    targets: Staging<u32>,
    order: Staging<u32>,
    starts: Staging<u32>,
    ids: Staging<u32>,
    /// Token and row, to be sorted.
    sorted: Vec<u64>,
    vocabulary: usize,
}

impl Tokens {
    pub(super) fn new(allocator: &Allocator, rows: usize) -> Self {
        let allocator = allocator.for_purpose("tokens");
        Self {
            inputs: allocator.zeros(rows),
            targets: allocator.zeros(rows),
            order: allocator.zeros(rows),
            starts: allocator.zeros(rows + 1),
            ids: allocator.zeros(rows),
        }
    }

    pub(super) fn inputs(&self) -> View<'_, u32> {
        self.inputs.view()
    }

    pub(super) fn targets(&self) -> View<'_, u32> {
        self.targets.view()
    }
}

impl TokenSender {
    pub(super) fn new(device: &Cuda, rows: usize, vocabulary: usize) -> Result<Self, Error> {
        Ok(Self {
            inputs: Staging::new(device, rows)?,
            targets: Staging::new(device, rows)?,
            order: Staging::new(device, rows)?,
            starts: Staging::new(device, rows + 1)?,
            ids: Staging::new(device, rows)?,
            sorted: vec![0; rows],
            vocabulary,
        })
    }

    /// Starts to copy the tokens of a batch.
    ///
    /// # Panics
    /// When a token is not below V: kernels would read beyond the tables.
    pub(super) fn send(&mut self, tokens: &mut Tokens, batch: Batch<'_>) -> Result<(), Error> {
        let Batch { inputs, targets } = batch;
        let vocabulary = self.vocabulary;
        let all = || inputs.iter().chain(targets);
        assert!(all().all(|&token| (token as usize) < vocabulary), "tokens below V");
        self.inputs.send(tokens.inputs.view_mut(), |staged| staged.copy_from_slice(inputs))?;
        self.targets.send(tokens.targets.view_mut(), |staged| staged.copy_from_slice(targets))
    }

    /// Lists the rows of each distinct token, and starts to copy the list. Backward needs it last:
    /// the device is busy while the host sorts.
    pub(super) fn send_groups<'a>(
        &mut self,
        tokens: &'a mut Tokens,
        inputs: &[u32],
    ) -> Result<TokenGroups<'a>, Error> {
        let sorted = &mut self.sorted;
        for (row, (entry, &token)) in sorted.iter_mut().zip(inputs).enumerate() {
            *entry = u64::from(token) << 32 | row as u64;
        }
        sorted.sort_unstable();
        let token = |entry: u64| (entry >> 32) as u32;
        let Tokens { order, starts, ids, .. } = tokens;
        self.order.send(order.view_mut(), |staged| {
            for (row, &entry) in staged.iter_mut().zip(&*sorted) {
                *row = entry as u32;
            }
        })?;
        let groups = || sorted.chunk_by(|&a, &b| token(a) == token(b));
        let count = groups().count();
        self.ids.send(ids.view_mut().slice(0..count), |staged| {
            for (id, group) in staged.iter_mut().zip(groups()) {
                *id = token(group[0]);
            }
        })?;
        self.starts.send(starts.view_mut().slice(0..count + 1), |staged| {
            let mut start = 0;
            for (staged, group) in staged.iter_mut().zip(groups()) {
                *staged = start;
                start += group.len() as u32;
            }
            staged[count] = start;
        })?;
        Ok(TokenGroups {
            order: order.view(),
            starts: starts.view().slice(0..count + 1),
            ids: ids.view().slice(0..count),
        })
    }
}
