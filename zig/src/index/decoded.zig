//! Vectors from their codes, where none are stored (docs/rabitq.md, "What a code keeps").
const std = @import("std");
const layout = @import("layout");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const space = @import("space.zig");
const PageWalk = @import("page_walk.zig").PageWalk;
const reader = @import("reader.zig");
const Reader = reader.Reader;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// What the whole codes of these vertices tell of their vectors, as float32 (count × dim), in the space of the input; of
/// cosine their directions. Vertices that ascend are read page after page.
pub fn decode_vectors(self: *const Reader, vertices: []const u32, out: []f32, diagnostic: *Diagnostic) Error!void {
    try self.check_vertices(vertices, diagnostic);
    const codes = &self.codes;
    const params = codes.params;
    const upper_bytes = params.upper_bytes();
    const lower_bytes = params.lower_bytes();
    const code = try self.allocator.alloc(u16, params.dim);
    defer self.allocator.free(code);
    const rotated = try self.allocator.alloc(f32, params.dim);
    defer self.allocator.free(rotated);
    var walk = try PageWalk.init(self.allocator, self);
    defer walk.deinit();
    var at_hand: ?layout.page.View = null;
    for (vertices, 0..) |vertex, i| {
        const view = if (at_hand != null and at_hand.?.has(vertex)) at_hand.? else page: {
            walk.seek(self.directory.page_of(vertex));
            break :page (try walk.next(diagnostic)).?;
        };
        at_hand = view;
        const record = vertex - view.first_vertex;
        const uppers = self.uppers(&view);
        const center_id = uppers.center_ids[record];
        if (center_id >= self.header.center_count) return reader.bad_file(diagnostic, reader.file_pages);
        const center = codes.centers[@as(usize, center_id) * params.dim ..][0..params.dim];
        const f_upper = quant.PositiveFloat.decode(@intCast(uppers.factors[record] >> 16));
        const f_full = quant.RecordFactors.f_full(view.ratios[record], f_upper, params.record_bits);
        quant.decode(params, uppers.codes[record * upper_bytes ..][0..upper_bytes], view.lower[record * lower_bytes ..][0..lower_bytes], f_full, center, code, rotated);
        const row = out[i * self.header.dim_in ..][0..self.header.dim_in];
        self.rotation.undo(rotated, row);
        for (row, self.mean) |*value, mean| value.* += mean;
        space.nearest_given(self.metric, self.dtype, row);
    }
}
