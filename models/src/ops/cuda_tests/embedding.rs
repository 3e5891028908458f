//! Embeddings: rows copied and added, and the rows of their gradients summed.

use device::DeviceBuffer;
use half::bf16;

use super::device::{Bound, Memory, Numbers};
use crate::ops::embedding;
use crate::ops::embedding::cuda::{Embedding, TokenGroups};
use crate::ops::kernels::CudaElement;

const VOCABULARY: usize = 23;
/// Positions of the table, more than any sequence has.
const POSITIONS: usize = 70;
/// B, T and C: one token, an odd number of packs, more columns than a chunk, and more than a block
/// has.
const SHAPES: [[usize; 3]; 4] = [[1, 1, 8], [3, 7, 24], [2, 65, 264], [3, 3, 1032]];

/// Mostly token 5: more rows than warps add.
fn tokens(count: usize) -> Vec<u32> {
    let token = |i: usize| if i % 3 == 1 { i * i % VOCABULARY } else { 5 };
    (0..count).map(|i| token(i) as u32).collect()
}

fn forward_agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::rounded_once(1e-7);
    let memory = Memory::new();
    let kernels = Embedding::new::<E>(memory.device()).unwrap();
    for shape in SHAPES {
        let [sequences, sequence_tokens, width] = shape;
        let ids = tokens(sequences * sequence_tokens);
        let words = Numbers::<E>::uniform(VOCABULARY * width, 1, 1.0);
        let positions = Numbers::<E>::uniform(POSITIONS * width, 2, 1.0);
        let device_ids = memory.upload(&ids);
        let device_words = memory.upload(&words.elements);
        let device_positions = memory.upload(&positions.elements);
        for with_positions in [false, true] {
            let mut y = memory.unwritten::<E>(ids.len() * width);
            let table = with_positions.then(|| device_positions.view());
            let words_view = device_words.view();
            kernels
                .forward(y.view_mut(), device_ids.view(), words_view, table, sequence_tokens)
                .unwrap();
            let mut exact = vec![0.0; y.len()];
            let tables = (&*words.exact, with_positions.then_some(&*positions.exact));
            embedding::forward(&mut exact, &ids, tables, (sequence_tokens, width));
            let what = format!("{shape:?}, positions: {with_positions}");
            BOUND.check(&what, &memory.download(&y), &exact);
        }
    }
}

/// The rows of every distinct token.
struct Groups {
    order: DeviceBuffer<u32>,
    starts: DeviceBuffer<u32>,
    ids: DeviceBuffer<u32>,
}

impl Groups {
    fn new(memory: &Memory, tokens: &[u32]) -> Self {
        let mut order: Vec<u32> = (0..tokens.len() as u32).collect();
        order.sort_by_key(|&row| tokens[row as usize]);
        let mut starts = vec![0];
        let mut ids = Vec::new();
        for group in order.chunk_by(|&a, &b| tokens[a as usize] == tokens[b as usize]) {
            ids.push(tokens[group[0] as usize]);
            starts.push(starts[starts.len() - 1] + group.len() as u32);
        }
        let [order, starts, ids] = [order, starts, ids].map(|list| memory.upload(&list));
        Self { order, starts, ids }
    }

    fn views(&self) -> TokenGroups<'_> {
        let Self { order, starts, ids } = self;
        TokenGroups { order: order.view(), starts: starts.view(), ids: ids.view() }
    }
}

const GRADIENT: Bound = Bound::wide(1e-6);

fn token_gradients_agree<E: CudaElement>() {
    let memory = Memory::new();
    let kernels = Embedding::new::<E>(memory.device()).unwrap();
    for shape in SHAPES {
        let [sequences, sequence_tokens, width] = shape;
        let ids = tokens(sequences * sequence_tokens);
        let dx = Numbers::<E>::uniform(ids.len() * width, 1, 1.0);
        let before = Numbers::<f32>::uniform(VOCABULARY * width, 2, 1.0);
        let mut exact = before.exact.clone();
        embedding::backward(&mut exact, None, &dx.exact, &ids, (sequence_tokens, width));

        let gradient = memory.upload(&dx.elements);
        let mut table = memory.upload(&before.elements);
        let groups = Groups::new(&memory, &ids);
        kernels.backward_tokens(table.view_mut(), gradient.view(), groups.views(), width).unwrap();
        GRADIENT.check_wide::<E>(&format!("{shape:?}"), &memory.download(&table), &exact);
    }
}

fn position_gradients_agree<E: CudaElement>() {
    let memory = Memory::new();
    let kernels = Embedding::new::<E>(memory.device()).unwrap();
    for shape in SHAPES {
        let [sequences, sequence_tokens, width] = shape;
        let ids = tokens(sequences * sequence_tokens);
        let dx = Numbers::<E>::uniform(ids.len() * width, 1, 1.0);
        let gradient = memory.upload(&dx.elements);
        let before = Numbers::<f32>::uniform(POSITIONS * width, 2, 1.0);
        let mut exact = before.exact.clone();
        let mut words = vec![0.0; VOCABULARY * width];
        let positions = Some(&mut *exact);
        embedding::backward(&mut words, positions, &dx.exact, &ids, (sequence_tokens, width));

        let mut table = memory.upload(&before.elements);
        let positions = table.view_mut();
        kernels.backward_positions(positions, gradient.view(), sequence_tokens, width).unwrap();
        GRADIENT.check_wide::<E>(&format!("{shape:?}"), &memory.download(&table), &exact);
    }
}

#[test]
fn forward() {
    forward_agrees::<f32>();
    forward_agrees::<bf16>();
}

#[test]
fn gradients_of_tokens() {
    token_gradients_agree::<f32>();
    token_gradients_agree::<bf16>();
}

#[test]
fn gradients_of_positions() {
    position_gradients_agree::<f32>();
    position_gradients_agree::<bf16>();
}
