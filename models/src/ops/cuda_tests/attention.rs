//! Attention: flash kernels in bf16 for heads of 64 and 128, plain kernels for all others.

use device::Allocator;
use device::cuda::{ComputeCapability, Cuda, Error};
use half::bf16;

use super::device::{Bound, Memory, Numbers, cuda};
use crate::ops::attention::cuda::{Attention, Forward};
use crate::ops::attention::{self, Shape, Workspace};
use crate::ops::kernels::CudaElement;
use crate::ops::testing::widened;

/// Results of the device.
struct Computed<E> {
    output: Vec<E>,
    log_sums: Vec<f32>,
    dqkv: Vec<E>,
}

impl Computed<bf16> {
    fn bits(&self) -> Vec<u32> {
        let elements = self.output.iter().chain(&self.dqkv);
        let log_sums = self.log_sums.iter().map(|sum| sum.to_bits());
        elements.map(|element| element.to_bits().into()).chain(log_sums).collect()
    }
}

/// Inputs of attention.
struct Case<E> {
    shape: Shape,
    qkv: Numbers<E>,
    doutput: Numbers<E>,
}

impl<E: CudaElement> Case<E> {
    /// Scores of a standard deviation of about 3.
    fn new(shape: Shape) -> Self {
        let rows = shape.sequences * shape.tokens;
        Self {
            shape,
            qkv: Numbers::uniform(rows * shape.qkv_width(), 1, 3.0),
            doutput: Numbers::uniform(rows * shape.width(), 2, 1.0),
        }
    }

    fn statistics(&self) -> usize {
        self.shape.sequences * self.shape.tokens * self.shape.heads
    }

    /// Output and log sums.
    fn exact_forward(&self) -> (Vec<f64>, Vec<f64>) {
        let Self { shape, qkv, doutput } = self;
        let mut output = vec![0.0; doutput.exact.len()];
        let mut log_sums = vec![0.0; self.statistics()];
        let mut workspace = Workspace::<f64>::new(&Allocator::host(), 1, shape);
        attention::forward(&mut output, &mut log_sums, &qkv.exact, *shape, &mut workspace);
        (output, log_sums)
    }

    /// The gradient, from the output and the log sums that the device computed: only the errors of
    /// backward are compared.
    fn exact_backward(&self, found: &Computed<E>) -> Vec<f64> {
        let Self { shape, qkv, doutput } = self;
        let output = widened(&found.output);
        let log_sums = widened(&found.log_sums);
        let mut dqkv = vec![0.0; qkv.exact.len()];
        let mut workspace = Workspace::<f64>::new(&Allocator::host(), 1, shape);
        let forward = (&*output, &*log_sums);
        let doutput = &doutput.exact;
        attention::backward(&mut dqkv, doutput, &qkv.exact, forward, *shape, &mut workspace);
        dqkv
    }

    fn found(&self, memory: &Memory, kernels: &Attention) -> Computed<E> {
        let Self { shape, qkv, doutput } = self;
        let qkv = memory.upload(&qkv.elements);
        let doutput = memory.upload(&doutput.elements);
        let mut output = memory.unwritten::<E>(doutput.len());
        let mut log_sums = memory.unwritten(self.statistics());
        kernels.forward(output.view_mut(), log_sums.view_mut(), qkv.view(), *shape).unwrap();
        let mut dqkv = memory.unwritten::<E>(qkv.len());
        let mut delta = memory.unwritten(self.statistics());
        let forward = Forward { output: output.view(), log_sums: log_sums.view() };
        kernels
            .backward(
                dqkv.view_mut(),
                delta.view_mut(),
                doutput.view(),
                qkv.view(),
                forward,
                *shape,
            )
            .unwrap();
        Computed {
            output: memory.download(&output),
            log_sums: memory.download(&log_sums),
            dqkv: memory.download(&dqkv),
        }
    }
}

/// The largest errors of one implementation.
struct Bounds {
    output: Bound,
    log_sums: Bound,
    gradient: Bound,
}

const PLAIN_BOUNDS: Bounds = Bounds {
    output: Bound::rounded_once(4e-6),
    log_sums: Bound::wide(1e-6),
    gradient: Bound::rounded_once(1e-5),
};

/// Probabilities and the gradients of scores are rounded on their way into a product as well.
const FLASH_BOUNDS: Bounds = Bounds {
    output: Bound { bf16: 5e-3, ..PLAIN_BOUNDS.output },
    log_sums: Bound::wide(1e-6),
    gradient: Bound { bf16: 2.5e-2, ..PLAIN_BOUNDS.gradient },
};

impl Bounds {
    fn check<E: CudaElement>(
        &self,
        memory: &Memory,
        kernels: &Attention,
        shape: Shape,
    ) -> Computed<E> {
        let case = Case::new(shape);
        let found = case.found(memory, kernels);
        let (output, log_sums) = case.exact_forward();
        let what = |name| format!("{name} of {shape:?}");
        self.output.check(&what("output"), &found.output, &output);
        self.log_sums.check_wide::<E>(&what("log sums"), &found.log_sums, &log_sums);
        self.gradient.check(&what("dqkv"), &found.dqkv, &case.exact_backward(&found));
        found
    }
}

const fn shape(
    [sequences, tokens]: [usize; 2],
    [heads, key_value_heads]: [usize; 2],
    head_width: usize,
) -> Shape {
    Shape { sequences, tokens, heads, key_value_heads, head_width }
}

/// Around the 32 keys that a warp reads at once and the four rows of a block; heads that start at
/// multiples of 16 bytes, in one format or both, and heads that do not.
const PLAIN: [Shape; 9] = [
    shape([2, 1], [2, 2], 20),
    shape([1, 31], [4, 2], 20),
    shape([2, 33], [6, 2], 8),
    shape([1, 65], [2, 1], 14),
    shape([1, 67], [3, 1], 64),
    shape([1, 34], [2, 1], 78),
    shape([2, 32], [2, 2], 96),
    shape([1, 37], [2, 1], 128),
    shape([1, 35], [1, 1], 256),
];

fn plain_agrees<E: CudaElement>() {
    let memory = Memory::new();
    for shape in PLAIN {
        let kernels = Attention::plain::<E>(memory.device(), shape.head_width).unwrap();
        PLAIN_BOUNDS.check::<E>(&memory, &kernels, shape);
    }
}

/// Around the blocks of 128 queries, of 128 or 64 keys, and the tiles of 64 and 32 keys or queries.
const FLASH: [([usize; 2], [usize; 2]); 12] = [
    ([3, 1], [2, 1]),
    ([1, 31], [1, 1]),
    ([2, 33], [4, 2]),
    ([1, 63], [2, 2]),
    ([1, 64], [1, 1]),
    ([2, 65], [3, 1]),
    ([1, 97], [2, 1]),
    ([1, 127], [2, 1]),
    ([1, 128], [1, 1]),
    ([2, 129], [2, 1]),
    ([1, 193], [1, 1]),
    ([1, 260], [2, 1]),
];

/// Compares kernels for heads of a width.
fn flash_agrees(head_width: usize, kernels: impl Fn(&Cuda, usize) -> Result<Attention, Error>) {
    let memory = Memory::new();
    let kernels = kernels(memory.device(), head_width).unwrap();
    for (rows, heads) in FLASH {
        FLASH_BOUNDS.check::<bf16>(&memory, &kernels, shape(rows, heads, head_width));
    }
}

#[test]
fn plain_in_f32() {
    plain_agrees::<f32>();
}

#[test]
fn plain_in_bf16() {
    plain_agrees::<bf16>();
}

#[test]
fn flash_with_heads_of_64() {
    flash_agrees(64, Attention::new::<bf16>);
}

#[test]
fn flash_with_heads_of_128() {
    flash_agrees(128, Attention::new::<bf16>);
}

fn has_wgmma(device: &Cuda) -> bool {
    device.properties().compute_capability == ComputeCapability { major: 9, minor: 0 }
}

/// On devices other than Hopper's, says what else computes.
fn wgmma_agrees(head_width: usize) {
    let device = cuda();
    if has_wgmma(&device) {
        return flash_agrees(head_width, Attention::wgmma::<bf16>);
    }
    let error = Attention::wgmma::<bf16>(&device, head_width).unwrap_err().to_string();
    assert!(error.contains("is for 9.0 alone; use run.attention = flash"), "{error}");
}

#[test]
fn wgmma_with_heads_of_64() {
    wgmma_agrees(64);
}

#[test]
fn wgmma_with_heads_of_128() {
    wgmma_agrees(128);
}

/// Every tile in shared memory is written several times.
#[test]
fn wgmma_of_long_sequences_repeats_its_bits() {
    let memory = Memory::new();
    if !has_wgmma(memory.device()) {
        return;
    }
    for (tokens, heads, head_width) in [(520, [2, 1], 64), (1040, [1, 1], 64), (520, [1, 1], 128)] {
        let kernels = Attention::wgmma::<bf16>(memory.device(), head_width).unwrap();
        let shape = shape([1, tokens], heads, head_width);
        let first = FLASH_BOUNDS.check::<bf16>(&memory, &kernels, shape);
        let second = Case::<bf16>::new(shape).found(&memory, &kernels);
        assert!(second.bits() == first.bits(), "{shape:?}");
    }
}

#[test]
fn flash_is_for_bf16_and_two_widths() {
    let memory = Memory::new();
    let is_flash =
        |kernels: Result<Attention, _>| format!("{:?}", kernels.unwrap()).contains("Flash");
    assert!(is_flash(Attention::new::<bf16>(memory.device(), 64)));
    assert!(is_flash(Attention::new::<bf16>(memory.device(), 128)));
    assert!(!is_flash(Attention::new::<bf16>(memory.device(), 96)));
    assert!(!is_flash(Attention::new::<f32>(memory.device(), 64)));
}
