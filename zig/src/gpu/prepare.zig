//! Input of kernels from the host: queries and lists of links.
const std = @import("std");
const quant = @import("quant");
const layout = @import("layout.zig");
const codes = @import("kernels/codes.zig");

/// Writes a prepared query as kernels take it: `plane` has `layout.plane_words_of(dim)` words, `terms` one for each center.
pub fn write(query: *const quant.Query, excluded: u32, out: *layout.Query, plane: []u32, terms: []f32) void {
    const dim = query.params.dim;
    std.debug.assert(plane.len == layout.plane_words_of(dim));
    const bytes: [*]const u8 = @ptrCast(query.coarse.ptr); // padded with zeros to whole groups
    switch (query.params.memory_bits) {
        inline 1...layout.bits_max => |bits| for (0..plane.len) |word| {
            const group = word / codes.fields * layout.group_dims;
            const field = word % codes.fields;
            var value: u32 = 0;
            inline for (0..4) |i| value |= @as(u32, bytes[group + codes.dim_of(bits, field, i)]) << (8 * i);
            plane[word] = value;
        },
        else => unreachable,
    }
    @memcpy(terms, query.terms[0..terms.len]);
    out.* = .{ .scale = 2 * query.coarse_step, .bias = query.coarse_bias, .excluded = excluded };
}

/// Copies packed codes to the stride that they have in device memory. `out` ends with `layout.code_padding` bytes, which are zeroed,
/// as are those between codes.
pub fn spread_codes(dim: u32, bits: u32, n: u32, packed_codes: [*]const u8, out: []u8) void {
    const from = dim / 8 * bits;
    const to = layout.code_stride_of(dim, bits);
    std.debug.assert(out.len == @as(usize, n) * to + layout.code_padding);
    for (0..n) |vertex| {
        const row = out[vertex * to ..][0..to];
        @memcpy(row[0..from], packed_codes[vertex * from ..][0..from]);
        @memset(row[from..], 0);
    }
    @memset(out[@as(usize, n) * to ..], 0);
}
