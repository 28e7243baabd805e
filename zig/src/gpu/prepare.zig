//! Queries as kernels take them.
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
