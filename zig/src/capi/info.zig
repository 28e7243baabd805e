//! velo_index_info of velo.h: what an open index is, and what it keeps in memory.
const std = @import("std");
const common = @import("common.zig");
const device = @import("device.zig");
const handle_file = @import("handle.zig");
const numbers = @import("numbers.zig");
const Index = handle_file.Index;

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
};

export fn velo_index_info_get(handle: ?*Index, info_out: ?*IndexInfo) i32 {
    return common.status_of_call(get(handle, info_out));
}

fn get(handle: ?*Index, info_out: ?*IndexInfo) common.Failure!void {
    const self = try common.need("index", handle);
    const out = try common.need("info_out", info_out);
    try self.enter();
    defer self.leave();
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
        .plan = numbers.number_of(numbers.Plan, self.shared.plan),
        .stores_vectors = @intFromBool(reader.vectors != null),
        .memory_codes_bytes = reader.memory_codes_bytes(),
        .memory_links_bytes = reader.memory_links_bytes(),
        .memory_cache_bytes = (if (self.cache) |*cache| cache.memory_bytes() else 0) + self.page_caches.memory_bytes(),
        .memory_pages_bytes = reader.memory_pages_bytes(),
        .memory_workers_bytes = self.workers.memory_bytes() + self.part.memory_bytes(),
        .memory_budget_bytes = self.memory_budget_bytes,
        .device = self.workers.device,
        .uuid = @splat(0),
        .page_links = @intFromBool(m.page_links),
        .page_codes = @intFromBool(m.page_codes),
        .page_codes_kept = reader.page_codes_kept(),
        .cache_refused = @intFromBool(self.cache_refused),
    };
    common.put_text(&info.uuid, m.uuid);
    common.write_versioned(IndexInfo, out, &info);
}
