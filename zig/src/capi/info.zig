//! velo_index_info of velo.h: what an open index is, and what it keeps in memory.
const std = @import("std");
const index = @import("index");
const common = @import("common.zig");
const device = @import("engines.zig");
const handles = @import("handles.zig");
const Handle = handles.Handle;
const Index = @import("handle.zig").Index;
const ok = common.ok;

pub const IndexInfo = extern struct {
    struct_size: u32,
    dim: u32,
    n: u64,
    metric: i32,
    dtype: i32,
    memory_bits: u32,
    record_bits: u32,
    degree: u32,
    links_built: u32,
    links_kept: u32,
    page_size: u32,
    page_count: u64,
    records_per_page: f64,
    edges_per_vertex: f64,
    adjacency_bits_per_edge: f64,
    threads: u32,
    queries_in_flight: u32,
    plan: i32,
    stores_vectors: i32,
    memory_codes_bytes: u64,
    memory_links_bytes: u64,
    memory_cache_bytes: u64,
    memory_pages_bytes: u64,
    memory_workers_bytes: u64,
    memory_budget_bytes: u64,
    device: device.DeviceInfo,
    uuid: [40]u8,
    page_links: i32,
    page_codes: i32,
    page_codes_kept: u32,
    cache_refused: i32,
    gpu: @import("gpu.zig").Info,
    record_code_bytes: u32,
    record_codes_kept: i32,
};

export fn velo_index_info_get(handle: Handle, info_out: ?*IndexInfo) i32 {
    return common.status_of_call(get(handle, info_out));
}

fn get(handle: Handle, info_out: ?*IndexInfo) common.Failure!void {
    const self = try handles.enter(Index, "index", handle);
    defer handles.leave(handle);
    const out = try common.need("info_out", info_out);
    const reader = &self.reader;
    const m = reader.manifest();
    const n: f64 = @floatFromInt(m.n);
    var info: IndexInfo = .{
        .struct_size = @sizeOf(IndexInfo),
        .dim = m.dim,
        .n = m.n,
        .metric = @intFromEnum(reader.metric),
        .dtype = @intFromEnum(reader.dtype),
        .memory_bits = m.memory_bits,
        .record_bits = m.record_bits,
        .degree = m.degree,
        .links_built = m.links_built,
        .links_kept = reader.links_kept,
        .page_size = m.page_size,
        .page_count = m.page_count,
        .records_per_page = n / @as(f64, @floatFromInt(@max(1, m.page_count))),
        .edges_per_vertex = @as(f64, @floatFromInt(m.edges)) / n,
        .adjacency_bits_per_edge = @as(f64, @floatFromInt(m.adjacency_bits)) / @as(f64, @floatFromInt(@max(1, m.edges))),
        .threads = self.workers.threads,
        .queries_in_flight = self.workers.queries_in_flight,
        .plan = common.number_of(common.Plan, self.shared.plan),
        .stores_vectors = @intFromBool(reader.vectors != null),
        .memory_codes_bytes = reader.memory_codes_bytes() + self.shared.blocks_bytes(),
        .memory_links_bytes = reader.memory_links_bytes(),
        .memory_cache_bytes = (if (self.cache) |*cache| cache.memory_bytes() else 0) + self.page_caches.memory_bytes(),
        .memory_pages_bytes = reader.memory_pages_bytes(),
        .memory_workers_bytes = self.workers.memory_bytes() + self.segment.memory_bytes(),
        .memory_budget_bytes = self.memory_budget_bytes,
        .device = self.device,
        .uuid = @splat(0),
        .page_links = @intFromBool(m.page_links),
        .page_codes = @intFromBool(m.page_codes),
        .page_codes_kept = reader.page_codes_kept(),
        .cache_refused = @intFromBool(self.cache_refused),
        .gpu = self.gpu.info(),
        .record_code_bytes = if (m.record_codes) m.code_bytes else 0,
        .record_codes_kept = @intFromBool(if (reader.page_products) |*products| products.record_codes.len > 0 else false),
    };
    common.put_text(&info.uuid, m.uuid);
    common.write_versioned(IndexInfo, out, &info);
}

// ---- vectors ----
//
// Vectors of an open index, stored or decoded; or vectors for an index that was built without them (velo_vectors of velo.h).

export fn velo_get_vectors(handle: Handle, vertices: ?[*]const u32, count: u64, vectors_out: ?[*]f32) i32 {
    return common.status_of_call(get_vectors(handle, vertices, count, vectors_out, index.Reader.get_vectors));
}

export fn velo_decode_vectors(handle: Handle, vertices: ?[*]const u32, count: u64, vectors_out: ?[*]f32) i32 {
    return common.status_of_call(get_vectors(handle, vertices, count, vectors_out, index.Reader.decode_vectors));
}

fn get_vectors(handle: Handle, vertices: ?[*]const u32, count: u64, vectors_out: ?[*]f32, comptime read: anytype) common.Failure!void {
    const self = try handles.enter(Index, "index", handle);
    defer handles.leave(handle);
    if (count == 0) return;
    const ids = try common.need("vertices", vertices);
    const out = try common.need("vectors_out", vectors_out);
    var diagnostic: index.Diagnostic = .{};
    read(&self.reader, ids[0..@intCast(count)], out[0..@intCast(count * self.reader.header.dim_in)], &diagnostic) catch |err|
        return common.report_index(err, &diagnostic);
}

const Vectors = struct { store: index.vectors.Store, process: i32 };

export fn velo_vectors_open(path: ?[*:0]const u8, dim: u32, dtype: i32, order: ?[*]const u32, count: u64, vectors_out: ?*?*Vectors) i32 {
    const folder = path orelse return common.null_argument("path");
    const rows = order orelse return common.null_argument("order");
    const out = vectors_out orelse return common.null_argument("vectors_out");
    const element = std.enums.fromInt(index.Dtype, dtype) orelse return common.fail(.invalid_argument, .{ .argument = "dtype" }, "dtype {d} is unknown", .{dtype});
    const own = common.allocator.create(Vectors) catch return common.out_of_memory();
    var diagnostic: index.Diagnostic = .{};
    const store = index.vectors.Store.open(common.allocator, std.mem.span(folder), dim, element, rows[0..@intCast(count)], &diagnostic) catch |err| {
        common.allocator.destroy(own);
        return common.fail_index(err, &diagnostic);
    };
    own.* = .{ .store = store, .process = common.process() };
    out.* = own;
    return ok;
}

export fn velo_vectors_add(vectors: ?*Vectors, rows: ?*const anyopaque, row_count: u64, row_stride: u64) i32 {
    const own = vectors orelse return common.null_argument("vectors");
    if (own.process != common.process()) return common.forked();
    if (row_count == 0) return ok;
    const bytes: [*]const u8 = @ptrCast(rows orelse return common.null_argument("rows"));
    var diagnostic: index.Diagnostic = .{};
    own.store.add(bytes, row_count, row_stride, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_vectors_commit(vectors: ?*Vectors) i32 {
    const own = vectors orelse return common.null_argument("vectors");
    if (own.process != common.process()) return common.forked();
    var diagnostic: index.Diagnostic = .{};
    own.store.commit(&diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_vectors_close(vectors: ?*Vectors) i32 {
    const own = vectors orelse return ok;
    // A child's copy: what it points to is the parent's.
    if (own.process != common.process()) return ok;
    own.store.close();
    common.allocator.destroy(own);
    return ok;
}

export fn velo_products(x: ?[*]const f64, x_count: u64, y: ?[*]const f64, y_count: u64, len: u32, out: ?[*]f64) i32 {
    if (x_count == 0 or y_count == 0) return ok;
    const rows = x orelse return common.null_argument("x");
    const columns = y orelse return common.null_argument("y");
    const into = out orelse return common.null_argument("out");
    const fits = x_count <= std.math.maxInt(u32) and y_count <= std.math.maxInt(u32);
    if (!fits) return common.fail(.invalid_argument, .{ .argument = "x_count" }, "{d} by {d} products are too many", .{ x_count, y_count });
    index.vectors.products(rows, @intCast(x_count), columns, @intCast(y_count), len, into);
    return ok;
}
