//! The GPU of one build: it walks for one graph after the other (`gpu.Walks`). After a failure it gets nothing more of the build,
//! which goes on without it.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const graph = @import("graph");
const layout = @import("layout.zig");
const driver = @import("driver.zig");
const walks_file = @import("walks.zig");

pub const kernel_name = "velo_insert";

pub const Options = struct {
    degree: u32,
    list_size: u32,
    /// The host has memory for large batches.
    large: bool = true,

    /// Why no GPU walks for such a build; null where one does.
    pub fn obstacle(self: Options) ?[]const u8 {
        return if (self.list_size > layout.list_size_max) "its candidate lists are longer than kernels have them (build_list_size above 512)" else null;
    }

    fn of_walks(self: Options) walks_file.Options {
        const followed_bytes: u32 = if (self.large) 128 << 20 else 16 << 20;
        var options: walks_file.Options = .{ .degree = self.degree, .list_size = self.list_size };
        options.most = @min(options.most, followed_bytes / (options.followed_max() * @sizeOf(quant.Candidate)));
        return options;
    }
};

pub const Linker = struct {
    allocator: std.mem.Allocator,
    card: *const driver.Card,
    function: driver.Function,
    options: Options,
    walks: ?walks_file.Walks(Linker) = null,
    batches: u64 = 0,
    vertices: u64 = 0,
    /// Time of copies and kernels.
    busy_us: u64 = 0,
    is_off: bool = false,
    failure: driver.Diagnostic = .{},

    /// `vertices` of the largest graph, over vectors of `dim` dimensions. A GPU without room for it names the needed and the free bytes.
    pub fn init(allocator: std.mem.Allocator, card: *const driver.Card, module: driver.Module, options: Options, vertices: u64, dim: u32, diagnostic: *driver.Diagnostic) driver.Error!Linker {
        try card.enter(diagnostic);
        defer card.leave();
        const needed = walks_file.bytes_of(vertices, quant.dim_code_of(dim), options.of_walks());
        const memory = try card.memory(diagnostic);
        if (needed > memory.free) {
            diagnostic.needed_bytes = needed;
            diagnostic.free_bytes = memory.free;
            diagnostic.set("codes and links of the build take {d} bytes of device memory; {s} has {d} free of {d}", .{ needed, card.facts.name(), memory.free, memory.total });
            return error.DeviceMemory;
        }
        return .{ .allocator = allocator, .card = card, .function = try card.function(module, kernel_name, diagnostic), .options = options };
    }

    /// Walks for one graph, by the thread that builds it, until `end`; null where the GPU makes none.
    pub fn begin(context: *anyopaque, points: *const quant.BuildCodes, product: bool) ?graph.Walks {
        const self: *Linker = @ptrCast(@alignCast(context));
        if (self.is_off) return null;
        self.card.enter(&self.failure) catch {
            self.is_off = true;
            return null;
        };
        var options = self.options.of_walks();
        options.product = product;
        self.walks = walks_file.Walks(Linker).init(self.allocator, self, points, options) catch |err| {
            if (err == error.OutOfMemory) self.failure.set("the operating system gave no memory for batches", .{});
            self.is_off = true;
            self.card.leave();
            return null;
        };
        return self.walks.?.walks();
    }

    pub fn end(context: *anyopaque) void {
        const self: *Linker = @ptrCast(@alignCast(context));
        if (self.walks) |*walks| {
            walks.deinit(self.allocator);
            self.card.leave();
        }
        self.walks = null;
    }

    // ---- as `gpu.Walks` takes a card ----

    pub fn alloc(self: *Linker, bytes: u64) driver.Error!driver.Address {
        errdefer self.is_off = true;
        return (try self.card.alloc(bytes, &self.failure)).address;
    }

    pub fn free(self: *Linker, address: driver.Address) void {
        var buffer: driver.Buffer = .{ .address = address, .bytes = 0 };
        self.card.free(&buffer);
    }

    pub fn upload(self: *Linker, to: driver.Address, bytes: []const u8) driver.Error!void {
        errdefer self.is_off = true;
        const began = base.nowMicros();
        try self.card.upload(.{ .address = to, .bytes = bytes.len }, 0, bytes, null, &self.failure);
        try self.finish(began);
    }

    pub fn download(self: *Linker, to: []u8, from: driver.Address) driver.Error!void {
        errdefer self.is_off = true;
        const began = base.nowMicros();
        try self.card.download(to, .{ .address = from, .bytes = to.len }, null, &self.failure);
        try self.finish(began);
    }

    pub fn walk(self: *Linker, index: layout.Index, batch: layout.Batch) driver.Error!void {
        errdefer self.is_off = true;
        const began = base.nowMicros();
        var own_index = index;
        var own_batch = batch;
        var arguments = [_]?*anyopaque{ &own_index, &own_batch };
        const warps = batch.block_warps();
        try self.card.launch(self.function, .{
            .blocks = std.math.divCeil(u32, batch.count, warps) catch unreachable,
            .threads = layout.lanes * warps,
            .shared_bytes = warps * batch.warp_bytes(),
        }, null, &arguments, &self.failure);
        try self.finish(began);
        self.batches += 1;
        self.vertices += batch.count;
    }

    fn finish(self: *Linker, began: u64) driver.Error!void {
        try self.card.synchronize(null, &self.failure);
        self.busy_us += base.nowMicros() -| began;
    }
};
