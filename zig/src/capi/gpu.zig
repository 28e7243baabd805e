//! The GPUs of a process: each is opened by the first index or build that asks for it, and closed with the last. Also segments in
//! their memory, walks for builds, and velo_gpu_info of velo.h.
const std = @import("std");
const build_options = @import("build_options");
const gpu = @import("gpu");
const index = @import("index");
const offload = @import("offload");
const search = @import("search");
const common = @import("common.zig");
const engines = @import("engines.zig");
const driver = gpu.driver;
const report = common.report;

/// As velo_gpu_info.
pub const Info = extern struct {
    struct_size: u32 = @sizeOf(Info),
    state: i32 = 0,
    ordinal: u32 = 0,
    count: u32 = 0,
    compute: u32 = 0,
    driver_version: u32 = 0,
    total_bytes: u64 = 0,
    free_bytes: u64 = 0,
    resident_bytes: u64 = 0,
    batches: u64 = 0,
    queries: u64 = 0,
    failed_queries: u64 = 0,
    busy_us: u64 = 0,
    name: [96]u8 = @splat(0),
    reason: [256]u8 = @splat(0),
};

/// As velo_gpu_state.
const State = enum(i32) { none = 0, ready = 1, cpu = 2, lost = 3 };

/// velo_open_options.gpu
const none = 0;

// ---- devices ----

const Device = struct {
    navigator: *offload.Navigator,
    users: u32,
    following: ?*Device,
};

/// The open devices of this process.
const Registry = struct {
    /// The process that has used a GPU; 0: none. The driver does not work in its forks. They do not touch the mutex, which may have
    /// been locked when they began.
    process: std.atomic.Value(i32) = .init(0),
    mutex: std.Thread.Mutex = .{},
    first: ?*Device = null,

    fn acquire(self: *Registry, ordinal: u32, threads: u32, diagnostic: *driver.Diagnostic) AttachError!*Device {
        try self.enter(diagnostic);
        defer self.mutex.unlock();
        var next = self.first;
        while (next) |device| : (next = device.following) {
            if (device.navigator.card.facts.ordinal != ordinal) continue;
            device.users += 1;
            return device;
        }
        const device = try common.allocator.create(Device);
        errdefer common.allocator.destroy(device);
        var card = try driver.Card.open(try self.open_driver(diagnostic), ordinal, diagnostic);
        errdefer card.close();
        device.* = .{
            .navigator = try offload.Navigator.open(common.allocator, card, .{ .threads = threads }, diagnostic),
            .users = 1,
            .following = self.first,
        };
        self.first = device;
        return device;
    }

    fn release(self: *Registry, device: *Device) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        device.users -= 1;
        if (device.users > 0) return;
        var place = &self.first;
        while (place.* != device) place = &place.*.?.following;
        place.* = device.following;
        device.navigator.close();
        common.allocator.destroy(device);
    }

    fn enter(self: *Registry, diagnostic: *driver.Diagnostic) driver.Error!void {
        const own = common.process();
        if (self.process.cmpxchgStrong(0, own, .acq_rel, .acquire)) |of| if (of != own) {
            diagnostic.set("a parent of this process has used a GPU; CUDA does not work in its forks: start the process by spawn", .{});
            return error.Forked;
        };
        self.mutex.lock();
        self.process.store(own, .release);
    }

    /// With the mutex locked. Where there is no usable driver, forks of this process may look for one.
    fn open_driver(self: *Registry, diagnostic: *driver.Diagnostic) driver.Error!driver.Driver {
        errdefer if (self.first == null) self.process.store(0, .release);
        if (build_options.simulated and gpu.fake.world != null) return .init(&gpu.fake.api, diagnostic);
        return .open(diagnostic);
    }
};

var registry: Registry = .{};

// ---- segments ----

const AttachError = driver.Error || error{ OutOfMemory, ThreadFailed };

/// The GPU of an open index.
pub const Attached = struct {
    device: ?*Device = null,
    resident: ?*offload.Resident = null,
    /// Calls of fewer queries stay on the CPU.
    queries_least: u32 = 0,
    /// Why calls stay on the CPU.
    reason: [256]u8 = @splat(0),

    pub fn attach(asked: i32, queries_least: u32, shared: *const search.Shared, threads: u32) common.Failure!Attached {
        var self: Attached = .{ .queries_least = if (queries_least > 0) queries_least else offload.queries_least_of(threads) };
        if (asked == none) return self;
        var diagnostic: driver.Diagnostic = .{};
        self.open(@abs(asked) - 1, shared, threads, &diagnostic) catch |err| {
            self.detach();
            if (asked > 0) return failure_of(err, &diagnostic);
            common.put_text(&self.reason, if (diagnostic.len > 0) diagnostic.message() else @errorName(err));
        };
        return self;
    }

    fn open(self: *Attached, ordinal: u32, shared: *const search.Shared, threads: u32, diagnostic: *driver.Diagnostic) AttachError!void {
        self.device = try registry.acquire(ordinal, threads, diagnostic);
        if (offload.Resident.obstacle(shared)) |obstacle| return common.put_text(&self.reason, obstacle);
        self.resident = try self.device.?.navigator.add(shared, diagnostic);
    }

    /// No call over the segment is under way.
    pub fn detach(self: *Attached) void {
        const device = self.device orelse return;
        if (self.resident) |resident| device.navigator.remove(resident);
        registry.release(device);
        self.device = null;
        self.resident = null;
    }

    /// False where the workers answer the whole call.
    pub fn submit(self: *const Attached, job: *search.Job, running: *engines.Running) bool {
        const device = self.device orelse return false;
        return device.navigator.submit(job, self.queries_least, .{ .context = running, .submit_part = submit_part });
    }

    fn submit_part(context: *anyopaque, job: *search.Job) void {
        const running: *engines.Running = @ptrCast(@alignCast(context));
        switch (running.*) {
            inline else => |engine| engine.submit_part(job),
        }
    }

    pub fn info(self: *const Attached) Info {
        var out: Info = .{};
        out.reason = self.reason;
        const device = self.device orelse {
            if (self.reason[0] != 0) out.state = @intFromEnum(State.cpu);
            return out;
        };
        const state = device.navigator.state();
        describe(&out, &device.navigator.card);
        out.state = @intFromEnum(if (state.is_off) State.lost else if (self.resident == null) State.cpu else .ready);
        if (state.failure.len > 0) common.put_text(&out.reason, state.failure.message());
        out.resident_bytes = if (self.resident) |resident| resident.bytes else 0;
        out.batches = state.counts.batches;
        out.queries = state.counts.queries;
        out.failed_queries = state.counts.failed_queries + state.counts.refused_lists;
        out.busy_us = state.counts.busy_us;
        return out;
    }
};

// ---- builds ----

/// The GPU of a build. Its address must not change while the build has its walker.
pub const Linking = struct {
    device: ?*Device = null,
    linker: ?gpu.Linker = null,
    /// Why the CPU makes all walks.
    reason: [256]u8 = @splat(0),

    /// `vertices` of the largest graph.
    pub fn open(self: *Linking, asked: i32, options: *const index.builder.Options, vertices: u64) common.Failure!void {
        if (asked == none) return;
        var diagnostic: driver.Diagnostic = .{};
        self.acquire(@abs(asked) - 1, options, vertices, &diagnostic) catch |err| {
            self.close();
            if (asked > 0) return failure_of(err, &diagnostic);
            common.put_text(&self.reason, if (diagnostic.len > 0) diagnostic.message() else @errorName(err));
        };
    }

    fn acquire(self: *Linking, ordinal: u32, options: *const index.builder.Options, vertices: u64, diagnostic: *driver.Diagnostic) AttachError!void {
        const how: gpu.linker.Options = .{ .degree = options.degree, .list_size = options.build_list_size, .large = options.memory_bytes == 0 };
        self.device = try registry.acquire(ordinal, options.threads, diagnostic);
        if (how.obstacle()) |obstacle| return common.put_text(&self.reason, obstacle);
        const navigator = self.device.?.navigator;
        self.linker = try .init(common.allocator, &navigator.card, navigator.module, how, vertices, options.dim, diagnostic);
    }

    pub fn close(self: *Linking) void {
        const device = self.device orelse return;
        self.linker = null;
        registry.release(device);
        self.device = null;
    }

    pub fn walker(self: *Linking) ?index.Walker {
        const linker = if (self.linker) |*one| one else return null;
        return .{ .context = linker, .begin = gpu.Linker.begin, .end = gpu.Linker.end };
    }

    pub fn info(self: *const Linking) Info {
        var out: Info = .{};
        out.reason = self.reason;
        if (self.device) |device| describe(&out, &device.navigator.card);
        const linker = self.linker orelse {
            if (self.reason[0] != 0) out.state = @intFromEnum(State.cpu);
            return out;
        };
        out.state = @intFromEnum(if (linker.is_off) State.lost else .ready);
        if (linker.is_off) common.put_text(&out.reason, linker.failure.message());
        out.batches = linker.batches;
        out.queries = linker.vertices;
        out.busy_us = linker.busy_us;
        return out;
    }
};

fn describe(out: *Info, card: *const driver.Card) void {
    out.ordinal = card.facts.ordinal;
    out.compute = card.facts.compute;
    out.driver_version = card.driver.version;
    out.total_bytes = card.facts.total_bytes;
    common.put_text(&out.name, card.facts.name());
}

fn failure_of(err: AttachError, diagnostic: *const driver.Diagnostic) common.Failure {
    const status: common.Status = switch (err) {
        error.OutOfMemory => return error.OutOfMemory,
        error.Forked => .forked,
        else => .gpu,
    };
    const text = if (diagnostic.len > 0) diagnostic.message() else @errorName(err);
    return report(status, .{ .argument = "device", .needed_bytes = diagnostic.needed_bytes }, "{s}", .{text});
}

// ---- probes ----

export fn velo_gpu_probe(ordinal: u32, info_out: ?*Info) i32 {
    return common.status_of_call(probe(ordinal, info_out));
}

fn probe(ordinal: u32, info_out: ?*Info) common.Failure!void {
    const out = try common.need("info_out", info_out);
    var diagnostic: driver.Diagnostic = .{};
    const found = look(ordinal, &diagnostic) catch |err| return failure_of(err, &diagnostic);
    common.write_versioned(Info, out, &found);
}

fn look(ordinal: u32, diagnostic: *driver.Diagnostic) driver.Error!Info {
    try registry.enter(diagnostic);
    defer registry.mutex.unlock();
    const own = try registry.open_driver(diagnostic);
    var info: Info = .{ .count = try own.device_count(diagnostic), .driver_version = own.version };
    var card = try driver.Card.open(own, ordinal, diagnostic);
    defer card.close();
    try card.enter(diagnostic);
    defer card.leave();
    describe(&info, &card);
    const memory = try card.memory(diagnostic);
    info.free_bytes = memory.free;
    info.total_bytes = memory.total;
    info.state = @intFromEnum(State.ready);
    return info;
}

/// As velo_gpu_simulation.
pub const Simulation = extern struct {
    struct_size: u32,
    devices: u32,
    version: u32,
    failure: i32,
    memory_bytes: u64,
    others_bytes: u64,
    fail_call: u64,
    lost_from: u64,
    function: [40]u8,
};

export fn velo_gpu_simulate(simulation: ?*const Simulation) i32 {
    return common.status_of_call(simulate(simulation));
}

fn simulate(simulation: ?*const Simulation) common.Failure!void {
    if (!build_options.simulated) return report(.unsupported, .{}, "simulated GPUs are only in libvelo_sim", .{});
    gpu.fake.remove();
    const kept = struct {
        var function: [40]u8 = undefined;
    };
    const own = try common.read(Simulation, "simulation", simulation orelse return);
    kept.function = own.function;
    _ = try gpu.fake.install(common.allocator, .{
        .devices = own.devices,
        .version = own.version,
        .budget_bytes = own.memory_bytes,
        .others_bytes = own.others_bytes,
        .fail_call = own.fail_call,
        .failure = @enumFromInt(own.failure),
        .lost_from = own.lost_from,
        .function = std.mem.sliceTo(&kept.function, 0),
        .kernels = &gpu.host.kernels,
    });
}
