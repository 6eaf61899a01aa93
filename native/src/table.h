/* The table of the kernels of a path. */

#define ENTRY(dtype) \
    {PREFIX(dtype, packed_size), PREFIX(dtype, pack), PREFIX(dtype, forward), PREFIX(dtype, backward), \
     PREFIX(dtype, add_gradient), PREFIX(dtype, affine_size), PREFIX(dtype, pack_affine), PREFIX(dtype, run_model), PREFIX(dtype, tanh_of)}

const srnn_kernels KERNELS[2] = {ENTRY(float), ENTRY(double)};
