//! Convolutions as layers.

use crate::error::Result;
use crate::module::Module;
use crate::nn::init::{DEFAULT_KAIMING_NORMAL, Init};
use crate::nn::norms::per_channel;
use crate::nn::var_builder::VarBuilder;
use crate::tensor::Tensor;

/// A layer of a kernel, perhaps a bias, and a configuration.
macro_rules! convolution {
    (
        $(#[$doc:meta])* $layer:ident, $config:ident { $($(#[$field_doc:meta])* $field:ident: $default:literal,)+ },
        |$x:ident, $weight:ident, $c:ident| $call:expr
    ) => {
        #[doc = concat!("Settings of [`", stringify!($layer), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $config {
            $($(#[$field_doc])* pub $field: usize,)+
        }

        impl Default for $config {
            fn default() -> Self {
                $config { $($field: $default,)+ }
            }
        }

        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            weight: Tensor,
            bias: Option<Tensor>,
            config: $config,
        }

        impl $layer {
            /// A layer of this kernel, with a bias per out-channel.
            pub fn new(weight: Tensor, bias: Option<Tensor>, config: $config) -> $layer {
                $layer { weight, bias, config }
            }

            /// The settings.
            pub fn config(&self) -> &$config {
                &self.config
            }

            /// The kernel.
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// The bias, `[out]`.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }
        }

        impl Module for $layer {
            fn forward(&self, xs: &Tensor) -> Result<Tensor> {
                let ($x, $weight, $c) = (xs, &self.weight, &self.config);
                let product = $call?;
                match &self.bias {
                    None => Ok(product),
                    Some(bias) => product.broadcast_add(&per_channel(bias, product.rank())?),
                }
            }
        }
    };
}

convolution!(
    /// [`Tensor::conv1d`] with its kernel `[out, in / groups, size]`.
    Conv1d, Conv1dConfig {
        /// Zeros on either side.
        padding: 0,
        /// From one window to the next.
        stride: 1,
        /// From one element of a window to the next.
        dilation: 1,
        /// Groups of channels that are convolved alone.
        groups: 1,
    },
    |x, w, c| x.conv1d(w, c.padding, c.stride, c.dilation, c.groups)
);

convolution!(
    /// [`Tensor::conv2d`] with its kernel `[out, in / groups, size, size]`.
    Conv2d, Conv2dConfig {
        /// Zeros on each side.
        padding: 0,
        /// From one window to the next.
        stride: 1,
        /// From one element of a window to the next.
        dilation: 1,
        /// Groups of channels that are convolved alone.
        groups: 1,
    },
    |x, w, c| x.conv2d(w, c.padding, c.stride, c.dilation, c.groups)
);

convolution!(
    /// [`Tensor::conv_transpose1d`] with its kernel `[in, out / groups, size]`.
    ConvTranspose1d, ConvTranspose1dConfig {
        /// Elements that are cut off on either side.
        padding: 0,
        /// Elements that are added at the end.
        output_padding: 0,
        /// From one window to the next.
        stride: 1,
        /// From one element of a window to the next.
        dilation: 1,
        /// Groups of channels that are convolved alone.
        groups: 1,
    },
    |x, w, c| x.conv_transpose1d(w, c.padding, c.output_padding, c.stride, c.dilation, c.groups)
);

convolution!(
    /// [`Tensor::conv_transpose2d`] with its kernel `[in, out, size, size]`.
    ConvTranspose2d, ConvTranspose2dConfig {
        /// Elements that are cut off on each side.
        padding: 0,
        /// Elements that are added at the ends.
        output_padding: 0,
        /// From one window to the next.
        stride: 1,
        /// From one element of a window to the next.
        dilation: 1,
    },
    |x, w, c| x.conv_transpose2d(w, c.padding, c.output_padding, c.stride, c.dilation)
);

/// Numbers from `-bound` to `bound`.
fn within(bound: f64) -> Init {
    Init::Uniform { lo: -bound, up: bound }
}

/// Two constructors, with and without a bias. `$shape` is the kernel's, `$init` what new kernels and biases hold.
macro_rules! constructors {
    (
        $with:ident, $without:ident: $layer:ident, $config:ident,
        |$input:ident, $output:ident, $size:ident, $c:ident| $shape:expr, $init:expr
    ) => {
        #[doc = concat!("A [`", stringify!($layer), "`] with `weight` and `bias` of `vb`.")]
        ///
        /// # Errors
        /// When one is missing or has another shape.
        pub fn $with(
            $input: usize,
            $output: usize,
            $size: usize,
            $c: $config,
            vb: VarBuilder<'_>,
        ) -> Result<$layer> {
            let (kernel, bias): (Init, Init) = $init;
            let weight = vb.get_with_hints($shape, "weight", kernel)?;
            let bias = vb.get_with_hints($output, "bias", bias)?;
            Ok($layer::new(weight, Some(bias), $c))
        }

        #[doc = concat!("A [`", stringify!($layer), "`] with `weight` of `vb`.")]
        ///
        /// # Errors
        /// When it is missing or has another shape.
        pub fn $without(
            $input: usize,
            $output: usize,
            $size: usize,
            $c: $config,
            vb: VarBuilder<'_>,
        ) -> Result<$layer> {
            let (kernel, _): (Init, Init) = $init;
            Ok($layer::new(vb.get_with_hints($shape, "weight", kernel)?, None, $c))
        }
    };
}

constructors!(
    conv1d, conv1d_no_bias: Conv1d, Conv1dConfig,
    |in_channels, out_channels, kernel_size, cfg| (out_channels, in_channels / cfg.groups.max(1), kernel_size),
    (DEFAULT_KAIMING_NORMAL, within((in_channels as f64).sqrt().recip()))
);

constructors!(
    conv2d, conv2d_no_bias: Conv2d, Conv2dConfig,
    |in_channels, out_channels, kernel_size, cfg|
        (out_channels, in_channels / cfg.groups.max(1), kernel_size, kernel_size),
    (DEFAULT_KAIMING_NORMAL, within((in_channels as f64).sqrt().recip()))
);

constructors!(
    conv_transpose1d, conv_transpose1d_no_bias: ConvTranspose1d, ConvTranspose1dConfig,
    |in_channels, out_channels, kernel_size, cfg| (in_channels, out_channels / cfg.groups.max(1), kernel_size),
    {
        let init = within(((out_channels * kernel_size) as f64).sqrt().recip());
        (init, init)
    }
);

constructors!(
    conv_transpose2d, conv_transpose2d_no_bias: ConvTranspose2d, ConvTranspose2dConfig,
    |in_channels, out_channels, kernel_size, cfg| (in_channels, out_channels, kernel_size, kernel_size),
    {
        let init = within((out_channels as f64).sqrt().recip() / kernel_size as f64);
        (init, init)
    }
);
