//! What a code tells of its vector: the point of the grid, scaled by F, at its center (docs/rabitq.md, "What a code keeps").
const std = @import("std");
const assert = std.debug.assert;
const encode = @import("encode.zig");
const CodeParams = encode.CodeParams;

/// `out` = F·x̄ + c from both halves of a packed code, in the codes' space. `code` is scratch; all three are `params.dim` long.
pub fn decode(params: CodeParams, upper: []const u8, lower: []const u8, f_full: f32, center: []const f32, code: []u16, out: []f32) void {
    assert(center.len == params.dim and code.len == params.dim and out.len == params.dim);
    const middle = params.center_full();
    encode.unpack(upper, params.memory_bits, code);
    const grid: f32 = @floatFromInt(@as(u32, 1) << @intCast(params.record_bits));
    for (out, code) |*value, u| value.* = @as(f32, @floatFromInt(u)) * grid - middle;
    encode.unpack(lower, params.record_bits, code);
    for (out, code, center) |*value, u, c| value.* = f_full * (value.* + @as(f32, @floatFromInt(u))) + c;
}
