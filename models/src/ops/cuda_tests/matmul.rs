//! The products of a linear layer by cuBLASLt, with their epilogues.

use device::{Allocator, DeviceBuffer};
use half::bf16;

use super::device::{Bound, Memory, Numbers};
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::cuda::{AddBias, Blas, Epilogue, Epilogues, Extras, LinearProducts};
use crate::ops::matmul::{self, Shape, Sums};
use crate::tuning::TunedProduct;

/// One row, and rows and columns that fill no tile.
const SHAPES: [Shape; 2] =
    [Shape { rows: 1, inputs: 8, outputs: 16 }, Shape { rows: 37, inputs: 136, outputs: 72 }];

const NARROW: Bound = Bound::rounded_once(5e-6);
/// The library's GELU and its slope are approximate in bf16: an H100 exceeded one rounding by a
/// tenth.
const WITH_GELU: Bound = Bound { bf16: 6e-3, ..NARROW };
const WIDE: Bound = Bound::wide(5e-6);

/// A layer's operands, and what its epilogues read.
struct Case<E> {
    shape: Shape,
    x: Numbers<E>,
    weight: Numbers<E>,
    bias: Numbers<E>,
    /// (N, O).
    residual: Numbers<E>,
    /// (N, O).
    dy: Numbers<E>,
    /// (N, I).
    before_gelu: Numbers<E>,
}

impl<E: CudaElement> Case<E> {
    fn new(shape: Shape) -> Self {
        let Shape { rows, inputs, outputs } = shape;
        Self {
            shape,
            x: Numbers::uniform(rows * inputs, 1, 1.0),
            weight: Numbers::uniform(outputs * inputs, 2, 0.5),
            bias: Numbers::uniform(outputs, 3, 1.0),
            residual: Numbers::uniform(rows * outputs, 4, 2.0),
            dy: Numbers::uniform(rows * outputs, 5, 1.0),
            before_gelu: Numbers::uniform(rows * inputs, 6, 3.0),
        }
    }

    fn exact_forward(&self, bias: bool, epilogue: matmul::Epilogue<'_, f64>) -> Vec<f64> {
        let Self { shape, x, weight, bias: all, .. } = self;
        let mut y = vec![0.0; self.dy.exact.len()];
        let epilogue = (bias.then_some(&*all.exact), epilogue);
        let mut workspace = matmul::Workspace::new(&Allocator::host(), 1);
        matmul::forward(&mut y, &x.exact, &weight.exact, epilogue, *shape, &mut workspace);
        y
    }

    fn exact_input(&self, gelu: bool) -> Vec<f64> {
        let mut dx = vec![0.0; self.x.exact.len()];
        let mut before = self.before_gelu.exact.clone();
        let before = gelu.then_some(&mut *before);
        let mut workspace = matmul::Workspace::new(&Allocator::host(), 1);
        let (dy, weight) = (&self.dy.exact, &self.weight.exact);
        matmul::backward_input(&mut dx, dy, weight, before, self.shape, &mut workspace);
        dx
    }
}

/// The operands on the device.
struct Operands<E: CudaElement> {
    x: DeviceBuffer<E>,
    weight: DeviceBuffer<E>,
    bias: DeviceBuffer<E>,
    residual: DeviceBuffer<E>,
    dy: DeviceBuffer<E>,
    before_gelu: DeviceBuffer<E>,
}

impl<E: CudaElement> Operands<E> {
    fn new(memory: &Memory, case: &Case<E>) -> Self {
        let upload = |numbers: &Numbers<E>| memory.upload(&numbers.elements);
        Self {
            x: upload(&case.x),
            weight: upload(&case.weight),
            bias: upload(&case.bias),
            residual: upload(&case.residual),
            dy: upload(&case.dy),
            before_gelu: upload(&case.before_gelu),
        }
    }
}

fn blas(memory: &Memory) -> Blas {
    Blas::new(memory.device(), Blas::workspace(memory.allocator())).unwrap()
}

fn layer<E: CudaElement>(
    blas: &Blas,
    shape: Shape,
    forward: Epilogue,
    input: Epilogue,
) -> LinearProducts {
    LinearProducts::new::<E>(blas, shape, Epilogues { forward, input }).unwrap()
}

/// The bound of forward: a bias that the library refuses is added to what is rounded already.
fn bound_of_forward(layer: &LinearProducts, bound: Bound) -> Bound {
    let is_rounded_twice = layer.fallback().is_some_and(|parts| parts.bias);
    if is_rounded_twice { Bound { bf16: 2.0 * bound.bf16, ..bound } } else { bound }
}

fn forward_agrees<E: CudaElement>() {
    let memory = Memory::new();
    let mut blas = blas(&memory);
    for shape in SHAPES {
        let case = Case::<E>::new(shape);
        let Operands { x, weight, bias, residual, .. } = &Operands::new(&memory, &case);
        for (epilogue, bias) in [(Epilogue::None, None), (Epilogue::Bias, Some(bias.view()))] {
            let mut layer = layer::<E>(&blas, shape, epilogue, Epilogue::None);
            let mut y = memory.unwritten::<E>(case.dy.exact.len());
            let residual = Some(residual.view());
            let extras = Extras { bias, residual, before_gelu: None };
            layer.forward(&mut blas, y.view_mut(), x.view(), weight.view(), extras).unwrap();
            let exact = matmul::Epilogue::Residual(&case.residual.exact);
            let exact = case.exact_forward(bias.is_some(), exact);
            let bound = bound_of_forward(&layer, NARROW);
            bound.check(&format!("{epilogue:?} of {shape:?}"), &memory.download(&y), &exact);
        }
    }
}

fn forward_with_gelu_agrees<E: CudaElement>() {
    let memory = Memory::new();
    let mut blas = blas(&memory);
    for shape in SHAPES {
        let case = Case::<E>::new(shape);
        let Operands { x, weight, bias, .. } = &Operands::new(&memory, &case);
        let mut layer = layer::<E>(&blas, shape, Epilogue::GeluBias, Epilogue::None);
        let mut y = memory.unwritten::<E>(case.dy.exact.len());
        let mut before = memory.unwritten::<E>(y.len());
        let extras = Extras {
            bias: Some(bias.view()),
            residual: None,
            before_gelu: Some(before.view_mut()),
        };
        layer.forward(&mut blas, y.view_mut(), x.view(), weight.view(), extras).unwrap();
        let mut gelu = vec![0.0; y.len()];
        let exact = case.exact_forward(true, matmul::Epilogue::Gelu(&mut gelu));
        let [narrow, with_gelu] = [NARROW, WITH_GELU].map(|bound| bound_of_forward(&layer, bound));
        narrow.check(&format!("before GELU of {shape:?}"), &memory.download(&before), &exact);
        with_gelu.check(&format!("GELU of {shape:?}"), &memory.download(&y), &gelu);
    }
}

fn backward_agrees<E: CudaElement>() {
    let memory = Memory::new();
    let mut blas = blas(&memory);
    for shape in SHAPES {
        let case = Case::<E>::new(shape);
        let Operands { x, weight, dy, before_gelu, .. } = &Operands::new(&memory, &case);
        let before_gelu = Some(before_gelu.view());
        for (epilogue, before) in [(Epilogue::None, None), (Epilogue::GeluGradient, before_gelu)] {
            let mut layer = layer::<E>(&blas, shape, Epilogue::None, epilogue);
            let mut dx = memory.unwritten::<E>(x.len());
            layer.input(&mut blas, dx.view_mut(), dy.view(), weight.view(), before).unwrap();
            let exact = case.exact_input(before.is_some());
            let bound = if before.is_some() { WITH_GELU } else { NARROW };
            bound.check(&format!("{epilogue:?} of {shape:?}"), &memory.download(&dx), &exact);
        }
        let mut layer = layer::<E>(&blas, shape, Epilogue::None, Epilogue::None);
        let mut dweight = memory.unwritten(weight.len());
        let mut exact = vec![0.0; weight.len()];
        for sums in [Sums::Write, Sums::Add] {
            layer.weight(&mut blas, dweight.view_mut(), dy.view(), x.view(), sums).unwrap();
            let mut workspace = matmul::Workspace::new(&Allocator::host(), 1);
            let (dy, x) = (&case.dy.exact, &case.x.exact);
            matmul::backward_weight(&mut exact, dy, x, sums, shape, &mut workspace);
            let what = format!("{sums:?} of {shape:?}");
            WIDE.check_wide::<E>(&what, &memory.download(&dweight), &exact);
        }
    }
}

#[test]
fn forward() {
    forward_agrees::<f32>();
    forward_agrees::<bf16>();
}

#[test]
fn forward_with_gelu() {
    forward_with_gelu_agrees::<f32>();
    forward_with_gelu_agrees::<bf16>();
}

#[test]
fn backward() {
    backward_agrees::<f32>();
    backward_agrees::<bf16>();
}

/// The library's algorithms are timed at the next start and used when they are adopted; what is of
/// another product or no algorithm is not accepted.
#[test]
fn tuning() {
    let memory = Memory::new();
    let mut blas = blas(&memory);
    let [other, shape] = SHAPES;
    let case = Case::<f32>::new(shape);
    let Operands { x, weight, .. } = &Operands::new(&memory, &case);
    let mut layer = layer::<f32>(&blas, shape, Epilogue::None, Epilogue::None);
    let mut other = self::layer::<f32>(&blas, other, Epilogue::None, Epilogue::None);
    let [forward, ..] = layer.products();
    forward.begin_tuning(&blas);
    assert!(forward.take_measured().is_none(), "nothing was computed");
    let exact = case.exact_forward(false, matmul::Epilogue::Store);
    for what in ["measured", "adopted"] {
        let mut y = memory.unwritten::<f32>(case.dy.exact.len());
        let extras = Extras::default();
        layer.forward(&mut blas, y.view_mut(), x.view(), weight.view(), extras).unwrap();
        NARROW.check(what, &memory.download(&y), &exact);
        let [forward, ..] = layer.products();
        let Some(tuned) = forward.take_measured() else {
            assert_eq!(what, "adopted", "algorithms are measured once");
            continue;
        };
        assert!(tuned.chosen_ns > 0 && tuned.chosen_ns <= tuned.first_ns, "{tuned:?}");
        assert!(forward.accepts_tuned(&blas, &tuned));
        assert!(!other.products()[0].accepts_tuned(&blas, &tuned), "another shape");
        let unknown = TunedProduct { algorithm: [u64::MAX; 8], ..tuned.clone() };
        assert!(!forward.accepts_tuned(&blas, &unknown));
        forward.adopt(&tuned);
    }
}

/// Where no epilogue adds it. More rows than the largest grid computes in one pass.
fn adding_a_bias_agrees<E: CudaElement>() {
    const BOUND: Bound = Bound::rounded_once(1e-6);
    let memory = Memory::new();
    let kernel = AddBias::new::<E>(memory.device()).unwrap();
    for (rows, width) in [(1, 8), (37, 72), (40_000, 72)] {
        let y = Numbers::<E>::uniform(rows * width, 1, 1.0);
        let bias = Numbers::<E>::uniform(width, 2, 1.0);
        let mut sum = memory.upload(&y.elements);
        kernel.add(&mut sum.view_mut(), memory.upload(&bias.elements).view()).unwrap();
        let exact: Vec<f64> =
            y.exact.iter().zip(bias.exact.iter().cycle()).map(|(y, bias)| y + bias).collect();
        BOUND.check(&format!("{rows} rows of {width}"), &memory.download(&sum), &exact);
    }
}

#[test]
fn adding_a_bias() {
    adding_a_bias_agrees::<f32>();
    adding_a_bias_agrees::<bf16>();
}
